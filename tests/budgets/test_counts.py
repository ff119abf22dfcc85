"""Budgets: the number of units asked for is the number delivered, or an error says why not."""

from __future__ import annotations

import numpy as np
import pytest

from compressor.budgets.counts import Counts, step_targets
from compressor.budgets.max_drop import MaxDrop
from compressor.budgets.speedup import Speedup
from compressor.budgets.units import (
    latest_scores,
    parse_amount,
    parse_floors,
    parse_multiples,
    select,
)
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores
from tests.helpers.errors import raises

HEADS = {"encoder_self.0": 8, "encoder_self.1": 8, "decoder_self.0": 8, "cross.0": 8}
FULL = Mask({name: (True,) * count for name, count in HEADS.items()})
NO_FLOOR = {"encoder_self": 0, "decoder_self": 0, "cross": 0}
MIXED = Mask({"cross.0": (True,) * 8, "encoder_ffn.0": (True,) * 96, "encoder_ffn.1": (True,) * 80})


def scores(seed: int = 0, full: Mask = FULL) -> Scores:
    rng = np.random.default_rng(seed)
    values = {name: tuple(rng.random(count).tolist()) for name, count in full.totals().items()}
    return Scores(values, "random", "random", {"seconds": 0.0})


@pytest.mark.parametrize(
    ("mode", "text", "left"),
    [
        ("keep", "0.5", 16),
        ("keep", "0.36", 12),  # 11.52 rounds to the nearest
        ("keep", "100%", 32),
        ("keep", "1", 1),  # a whole number is a count
        ("remove", "12", 20),
        ("keep", "encoder_self=0.25,cross=3", 4 + 3 + 8),
        ("remove", "decoder_self=5", 27),
    ],
)
def test_exact_head_counts(mode, text, left):
    mask = select(scores(), FULL, parse_amount(mode, text, FULL), NO_FLOOR)
    assert mask.count() == left


def test_the_removed_heads_are_the_least_important_ones():
    """Against NumPy's sort of the flattened scores."""
    given = scores(3)
    mask = select(given, FULL, {"heads": 20}, NO_FLOOR)
    flat = np.concatenate([given.values[name] for name in HEADS])
    kept = np.concatenate([mask.keep[name] for name in HEADS])
    assert set(np.argsort(flat)[:12]) == set(np.flatnonzero(~kept))


def test_floors_hold_and_the_count_is_still_exact():
    floors = parse_floors("cross=4,encoder_self=0", FULL)
    assert floors == {"encoder_self": 0, "decoder_self": 1, "cross": 4}
    for seed in range(20):
        mask = select(scores(seed), FULL, {"heads": 7}, floors)
        assert mask.count() == 7
        assert mask.count("cross") >= 4
        assert mask.count("decoder_self") >= 1
    floors = parse_floors("neurons=40", MIXED)
    assert floors == {"cross": 1, "encoder_ffn": 40}
    mask = select(scores(0, MIXED), MIXED, {"neurons": 0}, floors)
    assert mask.counts() == {"cross.0": 8, "encoder_ffn.0": 64, "encoder_ffn.1": 64}


@pytest.mark.parametrize(
    ("options", "id"),
    [
        *(({"keep": keep}, "budget-invalid") for keep in ("1.5", "nan", "33")),
        ({"keep": "encoder=0.5"}, "kind-unknown"),
        ({"keep": "cross=0.5,cross=0.6"}, "budget-invalid"),
        ({"keep": "heads=0.5,cross=0.3"}, "budget-invalid"),
        ({"keep": "8", "floor": "0.5"}, "budget-invalid"),
        ({"keep": "8", "multiple": "0"}, "budget-invalid"),
        ({"keep": "3"}, "floors-too-high"),
        ({"keep": "cross=1", "floor": "2"}, "floors-too-high"),
    ],
)
def test_budgets_that_make_no_sense_are_usage_errors(options, id):
    budget = Counts(**options)
    with raises(UsageError, id):
        budget.require_possible(budget.limits(FULL))


def test_a_measured_budget_needs_a_head_that_may_go():
    """Even attentions of a stack have the highest of their floors."""
    floors = "encoder_self=8,decoder_self=8,cross=1"
    uneven = Speedup(speedup=1.3, prune="heads", floor=floors)
    uneven.require_possible(uneven.limits(FULL))
    even = Speedup(speedup=1.3, prune="heads", floor=floors, even_heads=True)
    for budget in (even, MaxDrop(max_drop=0.3, prune="heads", floor="8")):
        with raises(UsageError, "floors-too-high"):
            budget.require_possible(budget.limits(FULL))


def test_steps_are_equal_and_end_at_the_budget():
    targets = step_targets(FULL, {"heads": 8}, 4)
    assert [target["heads"] for target in targets] == [26, 20, 14, 8]  # of 32
    assert step_targets(FULL, {"heads": 8}, 1) == [{"heads": 8}]
    assert step_targets(FULL, {"encoder_self": 4, "cross": 7}, 3) == [
        {"encoder_self": 12, "cross": 8},
        {"encoder_self": 8, "cross": 7},
        {"encoder_self": 4, "cross": 7},
    ]


def test_a_removed_head_keeps_the_score_it_was_removed_for():
    old, new = scores(1), scores(2)
    mask = select(old, FULL, {"heads": 26}, NO_FLOOR)
    latest = latest_scores(old, new, mask)
    for name in HEADS:
        for head in range(8):
            source = new if mask.keep[name][head] else old
            assert latest.values[name][head] == source.values[name][head]


@pytest.mark.parametrize("share", ["0.1", "0.5", "0.75"])
def test_neurons_are_left_in_multiples_and_the_best_of_each_sublayer(share):
    """As few as are no less than wanted; in each sublayer, those with the largest scores."""
    keep = parse_amount("keep", f"heads=0.5,neurons={share}", MIXED)
    given, floors = scores(0, MIXED), parse_floors("0", MIXED)
    mask = select(given, MIXED, keep, floors)
    assert mask.count("heads") == 4
    for name, count in mask.counts().items():
        if name.startswith("encoder_ffn"):
            assert count % 32 == 0 or count == MIXED.totals()[name]
            best = np.argsort(given.values[name])[::-1][:count]
            assert set(mask.kept(name)) == set(best)
    assert keep["neurons"] <= mask.count("neurons") < keep["neurons"] + 32


def test_multiples_can_be_set():
    multiples = parse_multiples("heads=3,neurons=10")
    floors = parse_floors("0", MIXED)
    mask = select(scores(0, MIXED), MIXED, {"heads": 5, "neurons": 50}, floors, multiples)
    assert (mask.count("heads"), mask.count("neurons")) == (6, 50)  # 8, 6, 3 or 0 heads
    assert parse_multiples("64") == {"heads": 1, "neurons": 64}
