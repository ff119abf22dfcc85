"""`--max-drop` as a budget: the search, against looking at every number of heads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from compressor.budget import fewest_heads, parse_floors
from compressor.heads import HeadMask, HeadScores
from compressor.quality_budget import acceptable, main_comparison, nested_mask, search
from compressor.report.schema import Comparison, QualityProbe

HEADS = {"encoder_self.0": 8, "encoder_self.1": 8, "decoder_self.0": 8, "cross.0": 8}
FULL = HeadMask({name: (True,) * count for name, count in HEADS.items()})


def comparison(low: float, high: float, metric: str = "bleu") -> Comparison:
    middle = (low + high) / 2
    return Comparison(
        metric=metric, dense=30.0, pruned=30 + middle, difference=middle, interval=(low, high),
        p_value=0.5, resamples=1000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "drop", "accepted"),
    [
        (-0.9, -0.31, 0.3, False),  # wholly below -0.3
        (-0.9, -0.29, 0.3, True),
        (-0.9, -0.3, 0.3, True),  # just touching
        (-0.2, 0.4, 0.3, True),
        (0.1, 0.2, 0.0, True),  # better than dense
        (-0.2, -0.1, 0.0, False),
        (-0.2, 0.0, 0.0, True),
        (math.nan, math.nan, 100.0, False),
    ],
)
def test_what_is_acceptable(low, high, drop, accepted):
    assert acceptable(comparison(low, high), drop) is accepted


def test_the_tasks_main_metric_decides():
    found = [comparison(0, 1, "chrf"), comparison(0, 1, "bleu")]
    assert main_comparison(found, "translation").metric == "bleu"
    found = [comparison(0, 1, "mcc"), comparison(0, 1, "accuracy")]
    assert main_comparison(found, "classification").metric == "accuracy"


def probe_of(accepted: set[int]):
    return lambda kept: QualityProbe(
        kept=kept, comparison=comparison(-1, 0), accepted=kept in accepted
    )


@pytest.mark.parametrize("total", [1, 2, 7, 12, 144])
@pytest.mark.parametrize("fewest", [0, 1])
def test_the_search_finds_the_threshold(total, fewest):
    """For every place where acceptance may begin, in at most log2 of the numbers of heads."""
    for threshold in range(fewest, total + 1):
        kept, probes = search(total, fewest, probe_of(set(range(threshold, total + 1))))
        assert kept == threshold
        assert len({probe.kept for probe in probes}) == len(probes)
        assert all(fewest <= probe.kept < total for probe in probes)
        assert len(probes) <= 1 + math.ceil(math.log2(max(1, total - fewest)))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_accepted_the_find_is_at_an_edge(seed):
    rng = np.random.default_rng(seed)
    accepted = {kept for kept in range(32) if rng.random() < 0.5}
    kept, probes = search(32, 0, probe_of(accepted))
    judged = {probe.kept: probe.accepted for probe in probes}
    assert kept == 32 or judged[kept]
    assert kept == 0 or judged[kept - 1] is False


def test_masks_are_nested_and_respect_floors():
    rng = np.random.default_rng(0)
    values = {name: tuple(rng.random(count).tolist()) for name, count in HEADS.items()}
    scores = HeadScores(values, "random", "random", {})
    floors = parse_floors("cross=5,encoder_self=0", FULL)
    fewest = fewest_heads(FULL, floors)
    assert fewest == 5 + 1
    before = nested_mask(scores, FULL, floors, fewest)
    assert before.count("cross") == 5
    for kept in range(fewest, 33):
        mask = nested_mask(scores, FULL, floors, kept)
        assert mask.count() == kept
        for name in HEADS:
            assert set(before.kept(name)) <= set(mask.kept(name))
        before = mask
