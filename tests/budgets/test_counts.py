"""Budgets: the number of heads asked for is the number delivered, or an error says why not."""

from __future__ import annotations

import numpy as np
import pytest

from compressor.budgets.counts import Counts, step_targets
from compressor.budgets.max_drop import MaxDrop
from compressor.budgets.speedup import Speedup
from compressor.budgets.units import (
    check_possible,
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


def scores(seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    values = {name: tuple(rng.random(count).tolist()) for name, count in HEADS.items()}
    return Scores(values, "random", "random", {"seconds": 0.0})


@pytest.mark.parametrize(
    ("mode", "text", "left"),
    [
        ("keep", "0.5", 16),
        ("keep", "50%", 16),
        ("keep", "0.36", 12),  # 11.52 rounds to the nearest
        ("keep", "1.0", 32),
        ("keep", "0.0", 0),
        ("keep", "1", 1),  # a whole number is a count
        ("keep", "13", 13),
        ("remove", "12", 20),
        ("remove", "0.25", 24),
        ("keep", "encoder_self=0.25,cross=3", 4 + 3 + 8),
        ("remove", "decoder_self=5", 27),
    ],
)
def test_exact_head_counts(mode, text, left):
    keep = parse_amount(mode, text, FULL)
    mask = select(scores(), FULL, keep, NO_FLOOR)
    assert mask.count() == left


def test_the_removed_heads_are_the_least_important_ones():
    """Against NumPy's sort of the flattened scores."""
    found = scores(3)
    mask = select(found, FULL, {"heads": 20}, NO_FLOOR)
    flat = np.concatenate([found.values[name] for name in HEADS])
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


def test_impossible_budgets_say_what_is_needed():
    keep = parse_amount("keep", "3", FULL)
    with raises(UsageError, "floors-too-high") as caught:
        check_possible("keep 3", keep, parse_floors("1", FULL), FULL)
    assert "need 4" in str(caught.value)
    check_possible("keep 3", keep, parse_floors("0", FULL), FULL)
    with raises(UsageError, "floors-too-high") as caught:
        Counts(keep="cross=1", floor="2").require_possible(Counts(keep="1", floor="2").limits(FULL))
    assert "need 2" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("1.5", "budget-invalid", "1.5"),
        ("-1", "budget-invalid", "-1"),
        ("nan", "budget-invalid", "nan"),
        ("half", "budget-invalid", "half"),
        ("33", "budget-too-large", "32"),
        ("cross=9", "budget-too-large", "8"),
        ("encoder=0.5", "kind-unknown", "encoder_self, decoder_self, cross"),
        ("cross=0.5,cross=0.6", "budget-invalid", "POOL=AMOUNT"),
        ("cross=0.5,7", "budget-invalid", "POOL=AMOUNT"),
    ],
)
def test_budgets_that_make_no_sense_are_usage_errors(text, problem, hint):
    with raises(UsageError, problem) as caught:
        parse_amount("keep", text, FULL)
    assert hint in str(caught.value)


@pytest.mark.parametrize("text", ["0.5", "-1", "one", "cross=x"])
def test_floors_are_whole_numbers_of_heads(text):
    with raises(UsageError, "floor-invalid"):
        parse_floors(text, FULL)


def kept_after_steps(mode: str, text: str, steps: int) -> list[int]:
    return [
        sum(target.values()) for target in step_targets(FULL, parse_amount(mode, text, FULL), steps)
    ]


def test_steps_are_equal_and_end_at_the_budget():
    assert kept_after_steps("keep", "8", 4) == [26, 20, 14, 8]  # of 32
    assert kept_after_steps("keep", "8", 1) == [8]


def test_steps_of_kinds_end_at_the_budget_of_each():
    keep = parse_amount("keep", "encoder_self=4,cross=7", FULL)
    assert step_targets(FULL, keep, 3) == [
        {"encoder_self": 12, "cross": 8},
        {"encoder_self": 8, "cross": 7},
        {"encoder_self": 4, "cross": 7},
    ]


def test_a_removed_head_keeps_the_score_it_was_removed_for():
    old, new = scores(1), scores(2)
    mask = select(old, FULL, {"heads": 26}, NO_FLOOR)
    found = latest_scores(old, new, mask)
    for name in HEADS:
        for head in range(8):
            source = new if mask.keep[name][head] else old
            assert found.values[name][head] == source.values[name][head]


def test_a_measured_budget_needs_a_head_that_may_go():
    budget = MaxDrop(max_drop=0.3, prune="heads", floor="8")
    with raises(UsageError, "floors-too-high") as caught:
        budget.require_possible(budget.limits(FULL))
    assert "32" in str(caught.value)


def test_even_attentions_of_a_stack_have_the_highest_of_their_floors():
    options = {"speedup": 1.3, "prune": "heads", "floor": "encoder_self=8,decoder_self=8,cross=1"}
    free, even = (Speedup(**options, even_heads=wanted) for wanted in (False, True))
    free.require_possible(free.limits(FULL))
    with raises(UsageError, "floors-too-high"):
        even.require_possible(even.limits(FULL))


MIXED = Mask({"cross.0": (True,) * 8, "encoder_ffn.0": (True,) * 96, "encoder_ffn.1": (True,) * 80})


def mixed_scores(seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    values = {name: tuple(rng.random(n).tolist()) for name, n in MIXED.totals().items()}
    return Scores(values, "random", "random", {"seconds": 0.0})


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("share", ["0.1", "0.5", "0.75"])
def test_neurons_are_left_in_multiples_and_the_best_of_each_sublayer(share, seed):
    """As few as are no less than wanted; in each sublayer, those with the largest scores."""
    keep = parse_amount("keep", f"heads=0.5,neurons={share}", MIXED)
    found, floors = mixed_scores(seed), parse_floors("0", MIXED)
    mask = select(found, MIXED, keep, floors)
    assert mask.count("heads") == 4
    for name, count in mask.counts().items():
        if name.startswith("encoder_ffn"):
            assert count % 32 == 0 or count == MIXED.totals()[name]
            best = np.argsort(found.values[name])[::-1][:count]
            assert set(mask.kept(name)) == set(best)
    wanted = keep["neurons"]
    assert wanted <= mask.count("neurons") < wanted + 32


def test_multiples_can_be_set():
    multiples = parse_multiples("heads=3,neurons=10", MIXED)
    keep = {"heads": 5, "neurons": 50}
    mask = select(mixed_scores(), MIXED, keep, parse_floors("0", MIXED), multiples)
    assert mask.count("heads") == 6  # 8, 6, 3 or 0
    counts = mask.counts()
    assert counts["encoder_ffn.0"] % 10 == counts["encoder_ffn.1"] % 10 == 0
    assert mask.count("neurons") == 50
    assert parse_multiples("64", MIXED) == {"heads": 1, "neurons": 64}


@pytest.mark.parametrize("text", ["0", "heads=x", "encoder_ffn=32", "1.5"])
def test_multiples_are_whole_numbers_of_heads_or_neurons(text):
    with raises(UsageError, "multiple-invalid"):
        parse_multiples(text, MIXED)


def test_a_kind_is_not_counted_twice():
    with raises(UsageError, "budget-invalid"):
        parse_amount("keep", "neurons=0.5,encoder_ffn=0.3", MIXED)


def test_floors_of_neurons_stop_the_cut():
    floors = parse_floors("neurons=40", MIXED)
    assert floors == {"cross": 1, "encoder_ffn": 40}
    mask = select(mixed_scores(), MIXED, {"neurons": 0}, floors)
    assert [mask.count("neurons"), *mask.counts().values()] == [64 + 64, 8, 64, 64]
