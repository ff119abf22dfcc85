"""Which layers go, by what a short training of each candidate brings back.

Candidates are equally fast: units are chosen for the wanted speed after some layers of a stack were
dropped. Their divergence before training speaks against every dropped layer, of which training
returns most; so each gets the run's own recovery with a few hundred steps. What that may cost is a
share of the run's time, and is told before.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from compressor import parallel
from compressor.budgets.base import UNREACHABLE, Choice, Layers, Limits
from compressor.errors import UsageError
from compressor.model.sublayers import Mask
from compressor.steps.results import LayersTry, SpeedSearch, delivered

MOST_SHARE = 0.25  # of a run's time goes into choosing, at most
LEAST_STEPS, MOST_STEPS = 40, 400  # of a short training: fewer tell too little, more tell no more
# Another candidate takes about half of what the first one took, which had units timed before.
_ANOTHER = 0.5

Rank = tuple[float, float]  # less is better: the divergence, then how much speed is missed


@dataclass(frozen=True)
class TrainingCost:
    """What training a candidate costs."""

    fixed: float  # seconds of a short training beside its steps
    step: float  # seconds of a step
    whole: float  # seconds of the run's own training of that candidate
    spent: float  # seconds that choosing had taken before


class Trainings(Protocol):
    """Short trainings of candidates, where the run trains what it delivers."""

    def cost(self, mask: Mask) -> TrainingCost:
        """What training a candidate costs, measured on a few steps."""

    def divergence(self, mask: Mask, steps: int) -> float:
        """Divergence from the dense model on held-out rows, nats per loss term.

        Args:
            mask: the units of the candidate, which goes through the run's recovery.
            steps: of its training.
        """


@dataclass(frozen=True)
class ProbePlan:
    """How many candidates get a short training, and how long each is."""

    candidates: int
    steps: int
    seconds: float  # of choosing and training one
    left: float  # seconds of all that is still to be chosen


def plan_probes(cost: TrainingCost, candidates: int, minutes: float | None) -> ProbePlan | None:
    """Fit short trainings of equally many steps into the share of the run that choosing may take.

    Args:
        cost: of training a candidate.
        candidates: to train, at most.
        minutes: of all short trainings together, at most; None: no limit but the share.

    Returns:
        None where the run is too short to train two of them.
    """
    left = MOST_SHARE / (1 - MOST_SHARE) * cost.whole - cost.spent
    another = _ANOTHER * cost.spent  # to choose its units
    for count in range(candidates, 1, -1):
        trainings = left - (count - 1) * another
        if minutes is not None:
            trainings = min(trainings, 60 * minutes)
        steps = min(MOST_STEPS, int((trainings / count - cost.fixed) / cost.step))
        if steps >= LEAST_STEPS:
            return ProbePlan(count, steps, another + cost.fixed + steps * cost.step, left)
    return None


def lowest(count: int, rank: Callable[[int], Rank]) -> int:
    """The number below `count` of least rank, of ranks that fall and then rise.

    Two neighbors in the middle say in which half it is. Where both miss the speed, the larger
    number, which drops more, is nearer to it.
    """
    first, last = 0, count - 1
    while first < last:
        middle = (first + last) // 2
        if rank(middle) < rank(middle + 1):
            last = middle
        else:
            first = middle + 1
    return first


def spread(depth: int, dropped: int) -> list[int]:
    """Numbers of the layers that go so that the first, the last and others evenly between stay.

    A stack of one layer keeps the last one, whose output is what is read.
    """
    kept = depth - dropped
    last = depth - 1
    stay = {last} if kept == 1 else {round(i * last / (kept - 1)) for i in range(kept)}
    return [number for number in range(depth) if number not in stay]


def shared_clock() -> float:
    """The seconds of rank 0's clock, by which all ranks decide alike."""
    return parallel.agree(time.monotonic())


class TooShortError(Exception):
    """The run is too short to train candidates in the share of it that choosing may take."""


@dataclass(frozen=True)
class _Tried:
    rank: Rank
    result: LayersTry
    choice: Choice | None = None  # None: no choice of units is fast enough


class ShapeSearch:
    """The best of some candidates of equal speed.

    Args:
        limits: before layers are dropped.
        layers: tells which layers matter least.
        trainings: trains candidates.
        choose_units: within the limits of a model without some layers.
        minutes: of all short trainings together, at most.
        report: tells the user a line of text.
        clock: seconds, the same for all ranks.
    """

    def __init__(
        self,
        limits: Limits,
        layers: Layers,
        trainings: Trainings,
        choose_units: Callable[[Limits], Choice],
        minutes: float | None,
        report: Callable[[str], None],
        clock: Callable[[], float] = shared_clock,
    ) -> None:
        self.limits = limits
        self.layers = layers
        self.trainings = trainings
        self.choose_units, self.minutes = choose_units, minutes
        self.report, self.clock = report, clock
        depths = Counter(layer.partition(".")[0] for layer in limits.full.layers())
        # The decoder, where there is one: it runs once for each token, the encoder once.
        self.stack = list(depths)[-1]
        self.depth = depths.pop(self.stack)
        self.others = depths  # the encoder beside a decoder
        self._tried: dict[frozenset[str], _Tried] = {}
        self._errors: list[UsageError] = []
        self._plan: ProbePlan | None = None
        self._ends = math.inf  # on the clock, when no other candidate fits any more

    def best(self) -> Choice:
        """The choice of units to go on with.

        Raises:
            UsageError: no candidate is fast enough.
            TooShortError: before any candidate was trained.
        """
        self._rank_without(lowest(self.depth, self._rank_without))
        # Half of the encoder: what its layers cost beside products counts most in small batches.
        for stack, depth in self.others.items():
            fewer = [f"{stack}.{i}" for i in spread(depth, depth // 2)]
            self._rank([*self._first().result.layers, *fewer])
        # Which layers stay: with as many, those whose skipping changes predictions least go.
        best = self._first().result.layers
        dropped = [layer for layer in best if layer.partition(".")[0] != self.stack]
        while len(dropped) < len(best) and self._fits():
            dropped.append(self.layers.next_to_drop(self.stack, dropped))
        self._rank(dropped)
        return self._found(self._first())

    def _found(self, best: _Tried) -> Choice:
        """The choice of a candidate, with all that were tried."""
        if best.choice is None:
            raise self._errors[-1]
        assert isinstance(best.choice.search, SpeedSearch)
        steps = 0 if self._plan is None else self._plan.steps
        gone = " and ".join(best.result.layers)
        found = {"layers": [x.result for x in self._tried.values()], "probe_steps": steps}
        return replace(
            best.choice,
            text=f"{best.choice.text}; {gone or 'no layer'} dropped, the best of "
            f"{len(self._tried)} candidates after {steps} steps of training",
            search=best.choice.search.model_copy(update=found),
        )

    def _first(self) -> _Tried:
        return min(self._tried.values(), key=lambda tried: tried.rank)

    def _fits(self) -> bool:
        """Whether there is time for another candidate."""
        if self._plan is None:
            return True
        trained = sum(tried.result.divergence is not None for tried in self._tried.values())
        in_time = self.clock() + self._plan.seconds <= self._ends
        return trained < self._plan.candidates and in_time

    def _rank_without(self, number: int) -> Rank:
        return self._rank([f"{self.stack}.{i}" for i in spread(self.depth, number)])

    def _rank(self, dropped: Sequence[str]) -> Rank:
        """The rank of a candidate, the last one if there is no time left to try it."""
        layers = frozenset(dropped)
        if layers not in self._tried and self._fits():
            self._tried[layers] = self._try(dropped)
        tried = self._tried.get(layers)
        return (math.inf, math.inf) if tried is None else tried.rank

    def _try(self, dropped: Sequence[str]) -> _Tried:
        names = sorted(dropped)
        without = f"without {' and '.join(names)}" if names else "with all layers"
        try:
            choice = self.choose_units(self.limits.without_layers(names))
        except UsageError as error:
            if error.id != UNREACHABLE:
                raise
            self._errors.append(error)  # fewer layers may reach it
            self.report(f"  {without}: too slow with the fewest units")
            return _Tried((math.inf, 0.0), LayersTry(layers=names))
        assert isinstance(choice.search, SpeedSearch)
        timed = delivered(choice.search.tries)
        result = LayersTry(layers=names, kept=str(choice.mask), speedup=timed.speedup)
        speed = f"{timed.speedup:.3g} times the speed"
        if not timed.met:
            self.report(f"  {without}: {speed}, less than wanted")
            return _Tried((math.inf, -timed.speedup), result, choice)
        steps = self._planned(choice.mask).steps
        lost = self.trainings.divergence(choice.mask, steps)
        self.report(f"  {without}: divergence {lost:.4f} after {steps} steps, at {speed}")
        return _Tried((lost, 0.0), result.model_copy(update={"divergence": lost}), choice)

    def _planned(self, mask: Mask) -> ProbePlan:
        """How candidates are trained; planned, and told, at the first of them."""
        if self._plan is None:
            cost = self.trainings.cost(mask)
            most = most_candidates(self.depth, any(n > 1 for n in self.others.values()))
            plan = plan_probes(cost, most, self.minutes)
            if plan is None:
                raise TooShortError
            trained = plan.candidates * (cost.fixed + plan.steps * cost.step) / 60
            self.report(
                f"  candidates of equal speed get {plan.steps} steps of training each, "
                f"{plan.candidates} at most: about {trained:.1f} minutes; the run's own training "
                f"takes about {cost.whole / 60:.1f}"
            )
            self._plan, self._ends = plan, self.clock() + plan.left
        return self._plan


def most_candidates(depth: int, encoder: bool = False) -> int:
    """How many candidates `ShapeSearch` tries, at most.

    Args:
        depth: of the stack whose number of layers is searched.
        encoder: whether another stack stands beside it.
    """

    def of_search(first: int, last: int, seen: frozenset[int]) -> int:
        if first == last:
            return len(seen)
        middle = (first + last) // 2
        seen = seen | {middle, middle + 1}
        return max(of_search(first, middle, seen), of_search(middle + 1, last, seen))

    # And one with other layers, one with half of the encoder.
    return 1 + encoder + max(1, of_search(0, depth - 1, frozenset()))
