"""Agreement of scores against SciPy, and what the table and the plot show of it."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from compressor.model.sublayers import Scores
from compressor.study.compare_scores import (
    compare_scores,
    comparison_figure,
    comparison_plot,
    comparison_text,
)
from tests.helpers.scores import LAYERS, sample


def flat(scores: Scores, kind: str) -> np.ndarray:
    return np.concatenate(
        [v for name, v in scores.values.items() if kind == "all" or name.startswith(kind + ".")]
    )


@pytest.mark.parametrize("levels", [None, 3])
def test_correlations_are_over_all_heads_and_per_kind(levels: int | None):
    first, second = sample(0, "taylor", levels=levels), sample(1, "fisher", levels=levels)
    (pair,) = compare_scores([first, second])["pairs"]
    assert [row["kind"] for row in pair["correlations"]] == [
        "all", "encoder_self", "decoder_self", "cross",
    ]  # fmt: skip
    for row in pair["correlations"]:
        x, y = flat(first, row["kind"]), flat(second, row["kind"])
        assert row["units"] == len(x)
        # Spearman: the correlation of ranks. Kendall: of the signs of all pairs' differences.
        ranks = np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1]
        a, b = (np.sign(values[:, None] - values[None]).ravel() for values in (x, y))
        assert row["spearman"] == pytest.approx(ranks)
        assert row["kendall"] == pytest.approx(a @ b / np.sqrt((a @ a) * (b @ b)))


def test_equal_and_opposite_orders_are_one_and_minus_one():
    scores = sample(0, "taylor")
    opposite = Scores(
        {name: tuple(-v for v in values) for name, values in scores.values.items()},
        "fisher", "fisher", {},
    )  # fmt: skip
    same = compare_scores([scores, Scores(scores.values, "copy", "copy", {})])["pairs"][0]
    turned = compare_scores([scores, opposite])["pairs"][0]
    for row, against in zip(same["correlations"], turned["correlations"], strict=True):
        assert (row["spearman"], row["kendall"]) == (pytest.approx(1), pytest.approx(1))
        assert (against["spearman"], against["kendall"]) == (pytest.approx(-1), pytest.approx(-1))
    assert all(row["shared"] == row["units"] for row in same["lowest"])
    assert turned["lowest"][-1] == {"units": 15, "shared": 0, "by_chance": 7.5}


def test_correlation_with_scores_that_are_all_the_same_is_undefined():
    constant = Scores({name: (0.0,) * n for name, n in LAYERS.items()}, "zero", "zero", {})
    comparison = compare_scores([sample(0, "taylor"), constant])
    row = comparison["pairs"][0]["correlations"][0]
    assert (row["spearman"], row["kendall"]) == (None, None)
    assert "n/a" in comparison_text(comparison)


def test_lowest_heads_are_those_that_pruning_would_take():
    first, second = sample(0, "taylor"), sample(1, "fisher")
    (pair,) = compare_scores([first, second])["pairs"]
    assert [row["units"] for row in pair["lowest"]] == [3, 6, 9, 12, 15]  # 10 ... 50 % of 30
    for row in pair["lowest"]:
        shared = set(np.argsort(flat(first, "all"))[: row["units"]]) & set(
            np.argsort(flat(second, "all"))[: row["units"]]
        )
        assert row["shared"] == len(shared)
        # The mean of the hypergeometric distribution.
        assert row["by_chance"] == pytest.approx(
            stats.hypergeom(30, row["units"], row["units"]).mean()
        )


def test_a_cut_between_equal_scores_has_no_shared_units():
    tied = Scores({name: (0.0,) * n for name, n in LAYERS.items()}, "zero", "zero", {})
    comparison = compare_scores([sample(0, "taylor"), tied])
    assert [row["shared"] for row in comparison["pairs"][0]["lowest"]] == [None] * 5
    assert "n/a: the cut falls between equal scores." in comparison_text(comparison)


def test_text_holds_every_number():
    comparison = compare_scores([sample(0, "taylor"), sample(1, "fisher")])
    lines = [line.split() for line in comparison_text(comparison).splitlines()]
    (pair,) = comparison["pairs"]
    names = ["taylor", "and", "fisher"]
    for label, row in zip(
        ("all heads", "encoder self-attention", "decoder self-attention", "cross-attention"),
        pair["correlations"],
        strict=True,
    ):
        cells = [f"{row['units']}", f"{row['spearman']:+.3f}", f"{row['kendall']:+.3f}"]
        assert [*names, *label.split(), *cells] in lines
    for row in pair["lowest"]:
        cells = [f"{row['units']}", f"{row['shared']}", f"{row['by_chance']:.1f}"]
        assert [*names, *cells] in lines


def test_plot_has_a_point_per_head_at_its_ranks():
    first, second = sample(0, "taylor", levels=5), sample(1, "fisher")
    figure = comparison_figure([first, second])
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("rank by taylor", "rank by fisher")
    drawn = {
        points.get_label(): np.asarray(points.get_offsets()).tolist() for points in axes.collections
    }
    assert list(drawn) == ["encoder self-attention", "decoder self-attention", "cross-attention"]
    expected = np.stack(
        [stats.rankdata(flat(first, "all")), stats.rankdata(flat(second, "all"))], axis=1
    ).tolist()
    assert sorted(point for points in drawn.values() for point in points) == sorted(expected)
    assert drawn["cross-attention"] == expected[-8:]


def test_plot_has_a_panel_per_pair():
    scores = [sample(seed, f"method{seed}") for seed in range(4)]
    labels = {(a.get_xlabel(), a.get_ylabel()) for a in comparison_figure(scores).axes}
    assert labels == {
        (f"rank by method{i}", f"rank by method{j}") for j in range(4) for i in range(j)
    }


def test_plot_is_written_as_png_or_svg_and_the_same_each_time(tmp_path):
    scores = [sample(0, "taylor"), sample(1, "fisher")]
    png, svg = tmp_path / "deep" / "a.png", tmp_path / "a.svg"
    comparison_plot(scores, png)
    comparison_plot(scores, svg)
    assert png.read_bytes().startswith(b"\x89PNG")
    text = " ".join(ElementTree.parse(svg).getroot().itertext())
    assert "rank by taylor" in text
    assert "Spearman" in text
    before = svg.read_bytes()
    comparison_plot(scores, svg)
    assert svg.read_bytes() == before


def test_neurons_are_compared_too_and_named_units_beside_heads():
    def both(seed: int, method: str) -> Scores:
        values = np.random.default_rng(seed).normal(size=(2, 40))
        parts = {f"encoder_ffn.{layer}": tuple(row) for layer, row in enumerate(values)}
        return Scores({**sample(seed, method).values, **parts}, method, method, {})

    scores = [both(0, "taylor"), both(1, "fisher")]
    text = comparison_text(compare_scores(scores))
    words = [line.split()[3:] for line in text.splitlines()]
    assert ["all", "units", "110"] in [line[:3] for line in words]
    assert ["encoder", "feed-forward", "80"] in [line[:3] for line in words]
    assert "all heads" in comparison_text(compare_scores([sample(0, "a"), sample(1, "b")]))
    drawn = comparison_figure(scores).axes[0].collections
    assert sum(len(points.get_offsets()) for points in drawn) == 110
