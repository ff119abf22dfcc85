"""`--speedup`: the cheapest loss that makes a model so much faster on this machine.

What a sublayer saves at n units is measured (`Timer.time`), what it loses follows from
scores, and dynamic programming chooses one count per sublayer, as ZipLM (Kurtic et al. 2023) does
with SPDY's program (Frantar & Alistarh 2022). Savings of sublayers are taken to add up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from compressor.budgets.base import UNREACHABLE, Limits
from compressor.budgets.units import removal_groups
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores, kind_of
from compressor.steps.results import CostTable, LayerCost, SpeedTry, Timing

Array = NDArray[np.float64]

RETRIES = 3  # tighter choices after one that misses the wanted speed-up; each is exported and timed
_STEPS = 20_000  # of the wanted saving; rounding wastes less than one step per layer


def counts_to_measure(units: int, floor: int, multiple: int) -> list[int]:
    """Unit counts below `units` that sublayers of a kind are timed at, ascending: quarters.

    One group beside none, because nothing can be interpolated there: without units the sublayer's
    fixed cost goes as well.
    """
    size = min(multiple, units)
    groups = units // size
    wanted = range(groups) if groups <= 4 else (0, 1, *(groups * part // 4 for part in (1, 2, 3)))
    # All units are the dense model, which is timed beside every count.
    return sorted({max(count * size, min(floor, units)) for count in wanted} - {units})


def trial_mask(full: Mask, kinds: Collection[str], units: int) -> Mask:
    """The mask that keeps the first `units` units in every sublayer of some kinds, for timing."""
    return full.without(
        (name, unit)
        for name, flags in full.keep.items()
        if kind_of(name) in kinds
        for unit in range(units, len(flags))
    )


def layer_costs(kind: str, layers: int, timings: Mapping[int, Timing]) -> list[LayerCost]:
    """Rows of the cost table for one kind, from timings by the numbers of units.

    Savings are monotone in the number of removed units, by isotonic regression, and at least 0:
    time lost by removing units is noise, and would otherwise be chosen for or against.
    """
    from scipy.optimize import isotonic_regression

    measured = {count: _speedup(timings[count]) for count in sorted(timings, reverse=True)}
    # The model takes 1 / speedup of the dense time; the rest was saved by all sublayers together.
    shares = [(1 - 1 / speedup) / layers for speedup, _ in measured.values()]
    rising = isotonic_regression(shares).x
    return [
        LayerCost(
            kind=kind,
            units=count,
            layers=layers,
            speedup=speedup,
            speedup_interval=interval,
            saved_share=max(0.0, float(share)),
        )
        for (count, (speedup, interval)), share in zip(measured.items(), rising, strict=True)
    ]


def _speedup(timing: Timing) -> tuple[float, tuple[float, float]]:
    assert timing.speedup is not None
    assert timing.speedup_interval is not None
    return timing.speedup, timing.speedup_interval


def savings(table: CostTable, full: Mask) -> dict[str, Array]:
    """Share of the dense time that each sublayer saves at 0, 1, … all units, [units + 1]."""
    saved = {}
    for name, flags in full.keep.items():
        rows = [row for row in table.rows if row.kind == kind_of(name)]
        points = {len(flags): 0.0} | {row.units: row.saved_share for row in rows}
        counts = sorted(points)
        shares = [points[count] for count in counts]
        saved[name] = np.interp(np.arange(len(flags) + 1), counts, shares)
    return saved


def choose(scores: Scores, limits: Limits, table: CostTable, speedup: float) -> Mask:
    """The mask of least summed score removed that is fast enough by the table, or the smallest."""
    start, floors = limits.start, limits.floors
    items = removal_groups(scores, start, floors, limits.multiples, limits.even)
    saved, counts = savings(table, start), start.counts()
    losses, gains = [], []
    for groups in items:
        errors = [group.score * len(group.units) for group in groups]  # a group's score is a mean
        losses.append(np.concatenate([[0.0], np.cumsum(errors)]))
        saved_by_groups = [0.0]  # share of the dense time that 0, 1, … groups save
        for group in groups:
            gain = saved_by_groups[-1]
            for name, removed in Counter(name for name, _ in group.units).items():
                before, counts[name] = counts[name], counts[name] - removed
                gain += saved[name][counts[name]] - saved[name][before]
            saved_by_groups.append(float(gain))
        # Savings only rise; their sums may fall by rounding.
        gains.append(np.maximum.accumulate(saved_by_groups))
    # Share of the dense time that is still to be saved, beside what dropped layers save.
    wanted = 1 / predicted_speedup(start, saved) - 1 / speedup
    if wanted <= 0:
        return start
    chosen = cheapest(losses, gains, wanted) or list(map(len, items))
    taken = chain.from_iterable(x[:count] for x, count in zip(items, chosen, strict=True))
    return start.without(unit for group in taken for unit in group.units)


def predicted_speedup(mask: Mask, saved: Mapping[str, Array]) -> float:
    """Dense time over the time that is left, by the cost table."""
    counts = mask.counts()
    left = 1 - sum(float(shares[counts[name]]) for name, shares in saved.items())
    return 1 / left if left > 0 else math.inf  # savings add up to more than all only by noise


def cheapest(losses: Sequence[Array], gains: Sequence[Array], wanted: float) -> list[int] | None:
    """Multiple-choice knapsack: each item's option, of least summed loss with the wanted gain.

    Losses and gains are [options] of each item; gains are not negative, and rounded down to
    multiples of `wanted / _STEPS`. None if all is not enough.
    """
    step = wanted / _STEPS
    steps = np.arange(_STEPS + 1)
    # least[j]: least loss with which the items seen so far gain at least j steps.
    least = np.full(_STEPS + 1, np.inf)
    least[0] = 0.0
    taken: list[tuple[NDArray[np.intp], NDArray[np.int64]]] = []
    for loss, gain in zip(losses, gains, strict=True):
        units = np.minimum(np.floor(gain / step), _STEPS).astype(np.int64)
        # [options, steps + 1]: with an option, the items before have to gain the rest.
        rest = [least[np.maximum(0, steps - won)] for won in units]
        sums = np.stack([lost + others for lost, others in zip(loss, rest, strict=True)])
        best = sums.argmin(axis=0)  # [steps + 1]
        least = sums[best, steps]
        taken.append((best, units))
    if not np.isfinite(least[_STEPS]):
        # Rounding gains down may have hidden that the most there is to gain is just enough.
        most = [int(np.argmax(gain)) for gain in gains]
        reached = sum(gain[option] for gain, option in zip(gains, most, strict=True))
        return most if reached >= wanted else None
    # Back from the last item: its option for what is needed leaves what the others must gain.
    chosen, need = [], _STEPS
    for best, units in reversed(taken):
        option = int(best[need])
        chosen.append(option)
        need = max(0, need - int(units[option]))
    return chosen[::-1]


def reach(
    wanted: float,
    scores: Scores,
    limits: Limits,
    table: CostTable,
    measure: Callable[[Mask, int], Timing],
) -> tuple[Mask, list[SpeedTry]]:
    """Choose units, time the choice, and ask for more where it misses, `RETRIES` times at most.

    `measure` also gets the number of the try, from 1. Returns the first choice that reached
    `wanted`, else the fastest, and all tries; UsageError if the fewest units are slower.
    """
    tries: list[SpeedTry] = []
    masks: list[Mask] = []
    start, aim = limits.start, wanted
    saved = savings(table, start)
    groups = removal_groups(scores, start, limits.floors, limits.multiples, limits.even)
    smallest = start.without(unit for group in chain(*groups) for unit in group.units)
    for number in range(1, RETRIES + 2):
        mask = choose(scores, limits, table, aim)
        predicted = predicted_speedup(mask, saved)
        speedup, interval = _speedup(measure(mask, number))
        masks.append(mask)
        tried = SpeedTry(
            aim=aim,
            predicted=predicted,
            kept=str(mask),
            speedup=speedup,
            speedup_interval=interval,
            met=speedup >= wanted,
        )
        tries.append(tried)
        if speedup >= wanted:
            return mask, tries
        # By counts alone: which units stay does not matter for the time.
        if mask.counts() == smallest.counts():
            lower = ", or lower --floor (0 lets a sublayer lose all)"
            raise UsageError(
                f"--speedup {wanted:g} cannot be reached here: the largest that was measured is "
                f"{max(one.speedup for one in tries):.3f}, with {smallest} kept as the floors "
                f"demand; ask for less{lower if smallest.count() else ''}",
                id=UNREACHABLE,
            )
        # What was predicted is what this choice was good for, and may be more than was asked.
        aim = predicted * wanted / speedup
    fastest = max(tries, key=lambda one: one.speedup)
    return masks[tries.index(fastest)], tries
