"""Budgets: the number of heads asked for is the number delivered, or an error says why not."""

from __future__ import annotations

import numpy as np
import pytest

from compressor.budgets.counts import (
    check_possible,
    parse_budget,
    parse_floors,
    prune_in_steps,
    select,
)
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores

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
    budget = parse_budget(mode, text, FULL)
    mask = select(scores(), FULL, budget.keep, NO_FLOOR)
    assert mask.count() == left


def test_kinds_that_are_not_named_keep_all():
    budget = parse_budget("keep", "encoder_self=3", FULL)
    mask = select(scores(), FULL, budget.keep, NO_FLOOR)
    assert mask.count("encoder_self") == 3
    assert mask.count("decoder_self") == mask.count("cross") == 8


def test_the_removed_heads_are_the_least_important_ones():
    """Against NumPy's sort of the flattened scores."""
    found = scores(3)
    mask = select(found, FULL, {"all": 20}, NO_FLOOR)
    flat = np.concatenate([found.values[name] for name in HEADS])
    kept = np.concatenate([mask.keep[name] for name in HEADS])
    assert set(np.argsort(flat)[:12]) == set(np.flatnonzero(~kept))


def test_floors_hold_and_the_count_is_still_exact():
    floors = parse_floors("cross=4,encoder_self=0", FULL)
    assert floors == {"encoder_self": 0, "decoder_self": 1, "cross": 4}
    for seed in range(20):
        mask = select(scores(seed), FULL, {"all": 7}, floors)
        assert mask.count() == 7
        assert mask.count("cross") >= 4
        assert mask.count("decoder_self") >= 1


def test_impossible_budgets_say_what_is_needed():
    budget = parse_budget("keep", "3", FULL)
    with pytest.raises(UsageError, match="leaves 3 heads.*4 layers need 4"):
        check_possible(budget, parse_floors("1", FULL), FULL)
    check_possible(budget, parse_floors("0", FULL), FULL)
    with pytest.raises(UsageError, match="of cross.*need 2"):
        check_possible(parse_budget("keep", "cross=1", FULL), parse_floors("2", FULL), FULL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1.5", "neither a fraction"),
        ("-1", "neither a fraction"),
        ("nan", "neither a fraction"),
        ("half", "neither a fraction"),
        ("33", "only 32 heads"),
        ("cross=9", "only 8 heads"),
        ("encoder=0.5", "no attention 'encoder'; it has encoder_self, decoder_self, cross"),
        ("cross=0.5,cross=0.6", "one KIND=AMOUNT for each"),
        ("cross=0.5,7", "one KIND=AMOUNT for each"),
    ],
)
def test_nonsense_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_budget("keep", text, FULL)


def test_steps_without_a_head_to_remove_are_not_scored():
    seen = []

    def score(mask: Mask) -> Scores:
        seen.append(mask.count())
        return scores(len(seen))

    mask, _ = prune_in_steps(FULL, parse_budget("remove", "2", FULL), NO_FLOOR, 8, score)
    assert seen == [32, 31]
    assert mask.count() == 30
    seen.clear()
    mask, found = prune_in_steps(FULL, parse_budget("keep", "32", FULL), NO_FLOOR, 2, score)
    assert (seen, mask) == ([32], FULL)
    assert found == scores(1)


def test_steps_score_what_is_left_and_end_exactly():
    seen = []

    def score(mask: Mask) -> Scores:
        seen.append(mask.count())
        return scores(len(seen))

    mask, final = prune_in_steps(FULL, parse_budget("keep", "8", FULL), NO_FLOOR, 4, score)
    assert seen == [32, 26, 20, 14]
    assert mask.count() == 8
    # A head removed in the first step keeps the score it was removed for.
    first = select(scores(1), FULL, {"all": 26}, NO_FLOOR)
    name, head = next((n, h) for n in HEADS for h in range(8) if not first.keep[n][h])
    assert final.values[name][head] == scores(1).values[name][head]
