"""Options of studies, and orders of heads that are known; no model is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores
from compressor.study import STUDIES, agreement, build_options, curve, training


def scores(**values: list[float]) -> Scores:
    layers = {name.replace("_0", "_self.0"): tuple(found) for name, found in values.items()}
    return Scores(layers, "made", "made", {})


def test_heads_are_removed_in_ascending_order_within_their_kind():
    found = scores(encoder_0=[0.5, 0.1, 0.3], decoder_0=[0.2, 0.9])
    full = Mask({name: (True,) * len(values) for name, values in found.values.items()})
    removed = curve.removals(found, full, "encoder_self", (0, 50, 100))
    assert [count for count, _ in removed] == [0, 2, 3]
    assert removed[1][1].keep == {
        "encoder_self.0": (True, False, False), "decoder_self.0": (True, True),
    }  # fmt: skip
    assert curve.removals(found, full, "all", (40,))[0][1].keep == {
        "encoder_self.0": (True, False, True), "decoder_self.0": (False, True),
    }  # fmt: skip


def test_ranking_counts_the_finally_most_important_quarter():
    """Of eight heads the top two are heads 6 and 7 at last, and 7 and 0 at first."""
    first = scores(encoder_0=[7, 1, 2, 3], decoder_0=[4, 5, 6, 8])
    last = scores(encoder_0=[1, 2, 3, 4], decoder_0=[5, 6, 7, 8])
    found = training.ranking(first, last)
    assert (found["top"], found["shared"], found["by_chance"]) == (2, 1, 0.5)
    assert found["p"] == pytest.approx(1 - (6 * 5) / (8 * 7))


def test_agreement_that_is_only_the_order_of_ties_is_not_counted():
    """With two heads above zero each, and not the same ones, the rest is shared by position."""
    first = scores(encoder_0=[0] * 8, decoder_0=[0, 0, 0, 0, 0, 0, 3, 4])
    last = scores(encoder_0=[0] * 8, decoder_0=[0, 0, 0, 0, 3, 4, 0, 0])
    found = agreement.compared(first, last, seed=0)
    assert [row["heads"] for row in found["lowest"]] == [2, 3, 5, 6, 8]
    assert all(row["shared"] is None and row["p"] is None for row in found["lowest"])
    top = training.ranking(first, last)  # four of sixteen, of which two are zero
    assert (top["top"], top["shared"], top["p"]) == (4, None, None)
    assert -1 < top["spearman"] < 0


def test_a_cut_beside_ties_is_counted():
    first = scores(encoder_0=[0, 0, 0, 0], decoder_0=[1, 1, 2, 3])
    last = scores(encoder_0=[0, 0, 0, 0], decoder_0=[1, 2, 3, 1])
    lowest = {row["heads"]: row for row in agreement.compared(first, last, seed=0)["lowest"]}
    assert lowest[4]["shared"] == 4
    assert lowest[4]["p"] == pytest.approx(1 / 70)
    assert lowest[2]["shared"] is None
    assert training.ranking(first, last)["shared"] == 1  # head 2 of heads 2 and 3, 1 and 2


def test_correlations_that_are_undefined_are_not_interpreted():
    constant = scores(encoder_0=[1, 1, 1, 1])
    undefined = agreement.compared(constant, scores(encoder_0=[1, 2, 3, 4]), seed=0)
    assert (undefined["correlations"][0]["spearman"], undefined["correlations"][0]["p"]) == (
        None, None,
    )  # fmt: skip
    fine = agreement.compared(*[scores(encoder_0=[1, 2, 3, 4])] * 2, seed=0)
    halves = {"two halves of the first": fine, "two halves of the other": undefined}
    said = agreement.verdict({"the two data sets": fine} | halves)
    assert "correlation of two halves of the other is not defined" in said
    assert "the data differ;" not in said
    whole = agreement.verdict({"the two data sets": fine, "a": fine, "b": fine})
    assert "scores is +1.00; of two halves of the same data set, +1.00 and +1.00: " in whole


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("head", {}, "no study 'head'; there are heads, layers, curve"),
        ("heads", {"model": "m"}, "`compress study heads` needs --test"),
        ("heads", {"model": "m", "test": "t", "conllu": "c"}, "--conllu makes no sense for"),
        ("training", {"model": "m"}, "--model makes no sense for `compress study training`"),
        ("curve", {"model": "m", "test": "t", "points": [50, 20]}, "50,20: .* rising order"),
        ("curve", {"model": "m", "test": "t", "points": [0, 200]}, "0,200: .* from 0 to 100"),
        ("roles", {"model": "m", "from_word": "sum"}, "'sum' is neither last nor mean"),
        ("layers", {"model": "m", "test": "t", "per": "example"}, "--per example is for --method"),
        (
            "curve",
            {"model": "m", "test": "t", "normalize": "none"},
            "--normalize none is for --method taylor or .*not for second-order",
        ),
        (
            "training",
            {"checkpoint": ["m"], "test": "t", "ablate": "metric", "method": "taylor"},
            "--ablate metric is for --method ablation, not for taylor",
        ),
        (
            "heads",
            {"model": "m", "test": "t", "text_column": "a", "seed": 1, "calibration_rows": 9},
            "--calibration-rows makes no sense",
        ),
        (
            "roles",
            {"model": "m", "conllu": "c", "text_column": "a"},
            "--text-column a is for --calibration FILE; give it, or leave it out",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(name, given, message):
    with pytest.raises(UsageError, match=message):
        build_options(name, given)


def test_options_of_the_method_that_scores_are_taken():
    common = {"model": "m", "test": "t", "calibration": "c", "text_column": "a"}
    taken = build_options("layers", common | {"method": "taylor", "per": "example"})
    assert taken.recipe.per == "example"
    assert build_options("curve", common | {"method": "ablation", "ablate": "metric"})


def test_every_study_is_described():
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    for name in STUDIES:
        assert f"## {name}" in page
        assert f"compress study {name}" in page
