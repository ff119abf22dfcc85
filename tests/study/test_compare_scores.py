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
)
from tests.helpers.scores import sample


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
