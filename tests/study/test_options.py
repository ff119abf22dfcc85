"""Options of studies, and orders of heads that are known; no model is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores
from compressor.options.declare import flags_of
from compressor.study import STUDIES, agreement, curve, training
from tests.helpers.errors import raises
from tests.helpers.recipes import request


def scores(**values: list[float]) -> Scores:
    layers = {name.replace("_0", "_self.0"): tuple(found) for name, found in values.items()}
    return Scores(layers, "made", "made", {})


def test_heads_are_removed_in_ascending_order_within_their_kind():
    found = scores(encoder_0=[0.5, 0.1, 0.3], decoder_0=[0.2, 0.9])
    full = Mask({name: (True,) * len(values) for name, values in found.values.items()})
    removed = curve.removals(found, full, "encoder_self", (0, 50, 100))
    assert [mask.total() - mask.count() for mask in removed] == [0, 2, 3]
    assert removed[1].keep == {
        "encoder_self.0": (True, False, False), "decoder_self.0": (True, True),
    }  # fmt: skip
    assert curve.removals(found, full, "heads", (40,))[0].keep == {
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
    assert [row["units"] for row in found["lowest"]] == [2, 3, 5, 6, 8]
    assert all(row["shared"] is None and row["p"] is None for row in found["lowest"])
    top = training.ranking(first, last)  # four of sixteen, of which two are zero
    assert (top["top"], top["shared"], top["p"]) == (4, None, None)
    assert -1 < top["spearman"] < 0


@pytest.mark.parametrize(
    ("name", "given", "id", "flag"),
    [
        ("heads", {"model": "m"}, "option-missing", "--test"),
        ("agreement", {"model": "m", "calibration": "c"}, "option-missing", "--other"),
        ("training", {"checkpoint": ["m"], "test": "t"}, "option-invalid", "--checkpoint"),
        ("curve", {"model": "m", "test": "t", "points": "50,20"}, "points-invalid", "--points"),
        ("curve", {"model": "m", "test": "t", "points": "0,200"}, "points-invalid", "--points"),
        ("curve", {"model": "m", "test": "t", "recover": "distill"}, "name-unknown", "--recover"),
        ("roles", {"model": "m", "from_word": "sum"}, "option-invalid", "--from-word"),
        ("layers", {"model": "m", "test": "t", "per": "example"}, "option-without-use", "--per"),
        ("curve", {"model": "m", "test": "t", "ablate": "loss"}, "option-without-use", "--ablate"),
        ("roles", {"model": "m", "calibration_rows": 9}, "option-without-use", "--calibration"),
    ],
)
def test_options_that_are_missing_wrong_or_without_effect_are_usage_errors(name, given, id, flag):
    with raises(UsageError, id) as caught:
        request(STUDIES[name], **given)
    assert flag in str(caught.value)


def test_a_study_has_only_its_own_flags():
    flags = {name: flags_of(kind).keys() for name, kind in STUDIES.items()}
    assert "--conllu" in flags["roles"]
    assert "--conllu" not in flags["heads"]
    assert "--model" not in flags["training"]
    assert "--calibration" not in flags["heads"]


def test_every_study_is_described():
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    for name in STUDIES:
        assert f"## {name}" in page
        assert f"compress study {name}" in page
