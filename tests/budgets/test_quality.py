"""`--max-drop` as a budget: the search, against looking at every number of heads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from compressor.budgets.counts import fewest_units, parse_floors
from compressor.budgets.quality import acceptable, main_comparison, nested_mask, search
from compressor.model.sublayers import Mask, Scores
from compressor.tasks import get_task
from tests.helpers.scores import comparison, probe

HEADS = {"encoder_self.0": 8, "encoder_self.1": 8, "decoder_self.0": 8, "cross.0": 8}
FULL = Mask({name: (True,) * count for name, count in HEADS.items()})


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


@pytest.mark.parametrize(
    ("task", "others", "main"),
    [("translation", "chrf", "bleu"), ("classification", "mcc", "accuracy")],
)
def test_the_tasks_main_metric_decides(task, others, main):
    found = [comparison(0, 1, others), comparison(0, 1, main)]
    assert main_comparison(found, get_task(task)).metric == main


def probe_of(accepted: set[int]):
    return lambda kept: probe(kept, kept in accepted)


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
    scores = Scores(values, "random", "random", {})
    floors = parse_floors("cross=5,encoder_self=0", FULL)
    fewest = fewest_units(FULL, floors)
    assert fewest == 5 + 1
    before = nested_mask(scores, FULL, floors, fewest)
    assert before.count("cross") == 5
    for kept in range(fewest, 33):
        mask = nested_mask(scores, FULL, floors, kept)
        assert mask.count() == kept
        for name in HEADS:
            assert set(before.kept(name)) <= set(mask.kept(name))
        before = mask


def test_a_model_that_may_lose_nothing_is_not_tried():
    assert search(3, 3, probe_of(set())) == (3, [])


def test_where_nothing_is_accepted_all_heads_stay():
    kept, probes = search(3, 0, probe_of(set()))
    assert kept == 3
    assert not any(probe.accepted for probe in probes)
