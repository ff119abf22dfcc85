"""Candidates of equal speed: which are tried, what that may take, and which is best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from compressor.budgets.base import UNREACHABLE, Choice, Limits
from compressor.budgets.shapes import (
    LEAST_STEPS,
    MOST_STEPS,
    ShapeSearch,
    TooShortError,
    TrainingCost,
    lowest,
    most_candidates,
    plan_probes,
    spread,
)
from compressor.budgets.units import MULTIPLES, parse_floors
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores
from compressor.steps.results import SpeedSearch, SpeedTry
from tests.helpers.errors import raises
from tests.helpers.scores import cost_table

DEPTH = 6
FULL = Mask(
    {"encoder_self.0": (True,) * 4, "encoder_self.1": (True,) * 4}
    | {f"decoder_self.{i}": (True,) * 4 for i in range(DEPTH)}
)
LIMITS = Limits(FULL, frozenset({"heads"}), parse_floors("0", FULL), MULTIPLES)


@pytest.mark.parametrize("count", range(1, 13))
def test_the_lowest_of_a_valley_is_found_with_few_looks(count):
    for best in range(count):
        seen: set[int] = set()

        def rank(number: int, best: int = best, seen: set[int] = seen) -> tuple[float, float]:
            seen.add(number)
            return float(abs(number - best)), 0.0

        assert lowest(count, rank) == best
        # One more, for other layers of that number.
        assert max(1, len(seen)) + 1 <= most_candidates(count)


def test_where_too_few_layers_go_the_search_turns_to_more():
    """Whatever misses the speed is worse than all that reach it; of these the first is best."""
    for reached in range(DEPTH):
        ranks = [(math.inf, 0.0)] * reached + [(float(i), 0.0) for i in range(reached, DEPTH)]
        assert lowest(DEPTH, ranks.__getitem__) == reached


@pytest.mark.parametrize("dropped", range(DEPTH))
def test_the_layers_that_stay_lie_evenly_from_the_first_to_the_last(dropped):
    gone = spread(DEPTH, dropped)
    stay = sorted(set(range(DEPTH)) - set(gone))
    assert len(gone) == dropped
    assert stay[-1] == DEPTH - 1
    if len(stay) > 1:
        assert stay[0] == 0
        gaps = np.diff(stay)
        # By brute force no other choice has more even gaps.
        best = min(
            max(np.diff(x)) - min(np.diff(x))
            for x in itertools.combinations(range(DEPTH), len(stay))
            if x[0] == 0 and x[-1] == DEPTH - 1
        )
        assert max(gaps) - min(gaps) == best


COST = TrainingCost(fixed=20.0, step=0.5, whole=3600.0, spent=200.0)


@pytest.mark.parametrize("minutes", [None, 1.0, 3.0, 1000.0])
@pytest.mark.parametrize("whole", [1000.0, 1500.0, 3600.0, 90_000.0])
def test_choosing_takes_under_a_quarter_of_the_run(whole, minutes):
    cost = TrainingCost(fixed=20.0, step=0.5, whole=whole, spent=200.0)
    plan = plan_probes(cost, 5, minutes)
    if plan is None:
        # Not even two of the shortest fit.
        two = 2 * (20 + LEAST_STEPS * 0.5)
        assert 4 * (200 + two + 100) > 200 + two + 100 + whole or two > 60 * minutes
        return
    trained = plan.candidates * (20 + plan.steps * 0.5)
    choosing = 200 + trained + (plan.candidates - 1) * 100
    assert choosing <= 0.25 * (choosing + whole)
    assert trained <= 60 * (minutes or math.inf)
    assert LEAST_STEPS <= plan.steps <= MOST_STEPS
    if plan.steps < MOST_STEPS:  # one more step of each would be too much
        more = trained + plan.candidates * 0.5
        choosing += more - trained
        assert choosing > 0.25 * (choosing + whole) or more > 60 * (minutes or math.inf)


class Layers:
    """The first ones matter least."""

    def next_to_drop(self, stack: str, dropped: Sequence[str]) -> str:
        return f"{stack}.{sum(name.startswith(stack) for name in dropped)}"

    def divergence(self, mask: Mask) -> float:
        raise AssertionError("candidates are weighed by their training")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Trainings:
    """Every candidate has a divergence after training, and takes so many seconds of the clock."""

    def __init__(self, clock: Clock, lost, seconds: float = 0.0, whole: float = 36_000.0) -> None:
        self.clock, self.lost, self.seconds, self.whole = clock, lost, seconds, whole
        self.trained: list[frozenset[str]] = []

    def cost(self, mask: Mask) -> TrainingCost:
        return TrainingCost(fixed=20.0, step=0.5, whole=self.whole, spent=200.0)

    def divergence(self, mask: Mask, steps: int) -> float:
        self.clock.now += self.seconds
        self.trained.append(mask.dropped)
        return self.lost(mask.dropped)


def search(
    trainings: Trainings, *, least: int = 0, limits: Limits = LIMITS, **options
) -> tuple[ShapeSearch, list[str]]:
    """Candidates reach the speed if at least so many layers are gone."""
    said: list[str] = []

    def choose_units(limits: Limits) -> Choice:
        if len(limits.dropped) < least:
            raise UsageError("too slow", id=UNREACHABLE)
        tried = SpeedTry(
            aim=2, predicted=2, kept="", speedup=2.1, speedup_interval=(2, 2.2), met=True
        )
        found = SpeedSearch(wanted=2, costs=cost_table({}, {}), tries=[tried])
        return Choice(limits.start, Scores({}, "", "", {}), "1 choice timed", found)

    made = ShapeSearch(
        limits, Layers(), trainings, choose_units, options.get("minutes"), said.append,
        trainings.clock,
    )  # fmt: skip
    return made, said


def decoder(*numbers: int) -> frozenset[str]:
    return frozenset(f"decoder.{i}" for i in numbers)


def by_number(best: int):
    """By the decoder's layers; a smaller encoder is worse."""

    def lost(dropped: frozenset[str]) -> float:
        of_decoder = {name for name in dropped if name.startswith("decoder")}
        return abs(len(of_decoder) - best) + 0.5 + 0.1 * (of_decoder != dropped)

    return lost


@pytest.mark.parametrize("best", range(DEPTH))
def test_the_number_of_decoder_layers_is_the_one_that_trains_best(best):
    trainings = Trainings(Clock(), by_number(best))
    made, said = search(trainings)
    choice = made.best()
    assert len(choice.mask.dropped) == best
    assert not any(name.startswith("encoder") for name in choice.mask.dropped)
    assert len(trainings.trained) == len(set(trainings.trained)) <= most_candidates(DEPTH, True)
    assert [frozenset(x.layers) for x in choice.search.layers] == trainings.trained
    assert choice.search.probe_steps == MOST_STEPS
    assert f"the best of {len(trainings.trained)} candidates after" in choice.text
    # Told before the first training.
    assert said[0].startswith(f"  candidates of equal speed get {MOST_STEPS} steps")


def test_a_decoder_of_one_layer_keeps_it():
    """Nothing is to be found out, and the choice of units is the run's."""
    sublayers = [name for name in FULL.keep if not name.endswith((".1", ".2", ".3", ".4", ".5"))]
    one = replace(LIMITS, full=Mask({name: FULL.keep[name] for name in sublayers}))
    assert one.full.layers()[-1] == "decoder.0"
    made, _ = search(Trainings(Clock(), by_number(0)), limits=one)
    assert made.best().mask.dropped == frozenset()


def test_other_layers_of_the_best_number_are_tried_and_taken_if_they_train_better():
    others = decoder(0, 1, 2, 3)  # what matters least, where 1 to 4 lie between those that stay
    for better in (True, False):
        lost = {decoder(1, 2, 3, 4): 0.4, others: 0.3 if better else 0.5}
        trainings = Trainings(Clock(), lambda dropped, lost=lost: lost.get(dropped, 1.0))
        choice = search(trainings)[0].best()
        assert trainings.trained[-1] == others
        assert choice.mask.dropped == (others if better else decoder(1, 2, 3, 4))


@pytest.mark.parametrize("best", range(DEPTH))
def test_half_of_the_encoder_goes_too_if_that_trains_better(best):
    """With the number of decoder layers that is the best; then others of these are tried."""

    def lost(dropped: frozenset[str]) -> float:
        return by_number(best)(dropped) - 0.2 * ("encoder.0" in dropped)

    trainings = Trainings(Clock(), lost)
    choice = search(trainings)[0].best()
    spread_evenly = {f"decoder.{i}" for i in spread(DEPTH, best)}
    assert choice.mask.dropped == {"encoder.0", *spread_evenly}
    assert {"encoder.0", *(f"decoder.{i}" for i in range(best))} in trainings.trained


def test_what_cannot_be_fast_enough_is_not_trained():
    trainings = Trainings(Clock(), by_number(0))
    made, said = search(trainings, least=4)
    assert len(made.best().mask.dropped) == 4
    assert min(map(len, trainings.trained)) == 4
    assert any("too slow with the fewest units" in line for line in said)
    with raises(UsageError, "speedup-unreachable"):
        search(trainings, least=DEPTH)[0].best()


def test_no_candidate_is_begun_that_would_end_too_late():
    """A third of an hour less 200 s is left; trainings take eight minutes, more than measured."""
    trainings = Trainings(Clock(), by_number(5), seconds=480.0, whole=3600.0)
    choice = search(trainings)[0].best()
    assert len(trainings.trained) == 2
    assert len(choice.mask.dropped) == 3  # of two and three in the middle


def test_minutes_bound_how_many_are_trained():
    """Two trainings of 40 steps fit into 90 s, three do not."""
    trainings = Trainings(Clock(), by_number(5))
    choice = search(trainings, minutes=1.5)[0].best()
    assert len(trainings.trained) == 2
    assert choice.search.probe_steps == 2 * (45 - 20)


def test_a_short_run_trains_no_candidate():
    trainings = Trainings(Clock(), by_number(5), whole=700.0)
    with pytest.raises(TooShortError):
        search(trainings)[0].best()
    assert trainings.trained == []
