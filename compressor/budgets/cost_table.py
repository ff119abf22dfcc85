"""`--speedup`: the cheapest loss that makes a model so much faster on this machine.

What a sublayer saves at n units is measured (`Timer.time`), what it loses follows from
scores, and dynamic programming chooses one count per sublayer, as ZipLM (Kurtic et al. 2023) does
with SPDY's program (Frantar & Alistarh 2022). Savings of sublayers are taken to add up; those of
heads and neurons are in proportion to the tokens that their layer works on, so the program is
solved for several numbers of tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from compressor.budgets.base import Limits
from compressor.budgets.removal_path import is_of_tokens
from compressor.budgets.token_order import TokenOrder
from compressor.budgets.unit_costs import Unit, UnitCosts, token_sublayers
from compressor.budgets.units import LEAST_TOKENS, Group, removal_groups
from compressor.model.sublayers import TOKEN_KIND, TOKEN_UNITS, Mask, Scores, kind_of
from compressor.steps.results import CostTable, LayerCost, Timing

Array = NDArray[np.float64]

SCHEDULES = 10  # numbers of tokens that are tried, beside all and the fewest
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


def tenths_to_measure(floor: int) -> list[int]:
    """Tenths of tokens that models are timed at, which all layers hand on, ascending."""
    return sorted({max(tenths, floor) for tenths in (0, 2, 4, 6, 8)} - {TOKEN_UNITS})


def timed_sublayers(full: Mask, kinds: Collection[str], units: int) -> list[str]:
    """The sublayers of some kinds that are timed with fewer units: all of them.

    One cross-attention stays whole where none would be left: then the encoder would not run
    either, which no single cross-attention saves.
    """
    names = [name for name in full.keep if kind_of(name) in kinds]
    cross = [name for name in names if kind_of(name) == "cross"]
    if units == 0 and len(cross) > 1:
        names.remove(cross[0])
    return names


def trial_mask(full: Mask, kinds: Collection[str], units: int) -> Mask:
    """The mask that keeps the first `units` units in the sublayers of some kinds, for timing."""
    return full.without(
        (name, unit)
        for name in timed_sublayers(full, kinds, units)
        for unit in range(units, len(full.keep[name]))
    )


def layer_costs(
    kind: str, layers: Mapping[int, int], timings: Mapping[int, Timing]
) -> list[LayerCost]:
    """Rows of the cost table for one kind, from timings by the numbers of units.

    `layers` are the numbers of sublayers that had so many units.

    Savings are monotone in the number of removed units, by isotonic regression, and at least 0:
    time lost by removing units is noise, and would otherwise be chosen for or against.
    """
    from scipy.optimize import isotonic_regression

    measured = {count: speedup_of(timings[count]) for count in sorted(timings, reverse=True)}
    # The model takes 1 / speedup of the dense time; the rest was saved by all sublayers together.
    shares = [(1 - 1 / speedup) / layers[count] for count, (speedup, _) in measured.items()]
    rising = isotonic_regression(shares).x
    return [
        LayerCost(
            kind=kind,
            units=count,
            layers=layers[count],
            speedup=speedup,
            speedup_interval=interval,
            saved_share=max(0.0, float(share)),
        )
        for (count, (speedup, interval)), share in zip(measured.items(), rising, strict=True)
    ]


def speedup_of(timing: Timing) -> tuple[float, tuple[float, float]]:
    """The speed-up over dense, and its interval."""
    assert timing.speedup is not None
    assert timing.speedup_interval is not None
    return timing.speedup, timing.speedup_interval


def layer_weights(costs: UnitCosts, limits: Limits) -> dict[str, float]:
    """What a unit of each sublayer saves, over the mean of the sublayers of its kind.

    A timing shows the mean alone. By counted multiply-adds, units of a last layer that computes one
    token save less than others. Tokens count the same in every layer.

    Args:
        costs: multiply-adds of the model's units.
        limits: `full` is the model that was timed, `start` the one without dropped layers.
    """
    now, timed = costs.per_unit(limits.start), costs.per_unit(limits.full)
    means = {
        kind: float(np.mean([cost for name, cost in timed.items() if kind_of(name) == kind]))
        for kind in map(kind_of, timed)
    }
    return {x: now[x] / means[kind_of(x)] if x in now else 1.0 for x in limits.start.keep}


def savings(table: CostTable, full: Mask, weights: Mapping[str, float]) -> dict[str, Array]:
    """Share of the dense time that each sublayer saves at 0, 1, … all units, [units + 1].

    Args:
        table: what sublayers of each kind save in the mean.
        full: all units.
        weights: see `layer_weights`.
    """
    saved = {}
    for name, flags in full.keep.items():
        rows = [row for row in table.rows if row.kind == kind_of(name)]
        points = {len(flags): 0.0} | {row.units: row.saved_share for row in rows}
        counts = sorted(points)
        shares = [points[count] for count in counts]
        saved[name] = weights[name] * np.interp(np.arange(len(flags) + 1), counts, shares)
    return saved


def choose(scores: Scores, limits: Limits, saved: Mapping[str, Array], speedup: float) -> Mask:
    """The mask of least summed score removed that is fast enough by `savings`, or the smallest."""
    start = limits.start
    groups = removal_groups(scores, start, limits.floors, limits.multiples, limits.even)
    items = [x for x in groups if not (x and is_of_tokens(x[0]))]
    # A group's score is a mean.
    errors = [np.cumsum([0.0, *(x.score * len(x.units) for x in item)]) for item in items]
    best, least = None, math.inf
    schedules = token_schedules(scores, limits, saved)
    for schedule in schedules:
        mask = start.without(schedule)
        lost = sum(scores.values[name][unit] for name, unit in schedule)
        # Share of the dense time that is still to be saved, beside what dropped layers save.
        wanted = 1 - saved_share(mask, saved) - 1 / speedup
        chosen: list[int] | None = [0] * len(items)
        if wanted > 0:
            chosen = cheapest(errors, group_savings(items, mask, saved), wanted)
        if chosen is None:
            continue
        lost += sum(float(x[count]) for x, count in zip(errors, chosen, strict=True))
        if best is None or lost < least:
            best, least = (mask, chosen), lost
    mask, chosen = best or (start.without(schedules[-1]), list(map(len, items)))
    taken = chain.from_iterable(x[:count] for x, count in zip(items, chosen, strict=True))
    return mask.without(unit for group in taken for unit in group.units)


def token_schedules(scores: Scores, limits: Limits, saved: Mapping[str, Array]) -> list[list[Unit]]:
    """Units of tokens that may go together, from none to all, at most `SCHEDULES` + 2.

    They lie on one path, by error per time saved, at about equal distances of time.
    """
    order = TokenOrder(scores, limits.start, limits.floors.get(TOKEN_KIND, LEAST_TOKENS))
    costs, path = [(-saved[name]).tolist() for name in order.names], list[Unit]()
    while found := order.next(costs):
        path += found[1]
        order.remove(found[1])
    if not path:
        return [[]]
    # Share of the dense time that is saved by the first 1, 2, … units.
    gains = np.cumsum([saved[name][unit] - saved[name][unit + 1] for name, unit in path])
    ends = np.searchsorted(gains, np.linspace(0, gains[-1], SCHEDULES)) + 1
    return [path[:end] for end in sorted({0, *map(int, ends), len(path)}) if end <= len(path)]


def group_savings(
    items: Sequence[Sequence[Group]], mask: Mask, saved: Mapping[str, Array]
) -> list[Array]:
    """Share of the dense time that 0, 1, … groups of each item save, of a model with a mask."""
    counts, worked = mask.counts(), tokens_worked_on(mask)
    gains: list[Array] = []
    for groups in items:
        saved_by_groups = [0.0]
        for group in groups:
            gain = saved_by_groups[-1]
            for name, removed in Counter(name for name, _ in group.units).items():
                before, counts[name] = counts[name], counts[name] - removed
                more = saved[name][counts[name]] - saved[name][before]
                gain += worked.get(name, 1.0) * more
            saved_by_groups.append(float(gain))
        # Savings only rise; their sums may fall by rounding.
        gains.append(np.maximum.accumulate(saved_by_groups))
    return gains


def tokens_worked_on(mask: Mask) -> dict[str, float]:
    """Sublayer -> the share of a row's tokens that it works on; others work on as many as ever.

    Attention works on what its layer gets, the feed-forward part on what is handed on. That of the
    last layer works on the one token that is read, and neither does a dropped layer change.
    """
    received, worked = 1.0, dict[str, float]()
    layers = [x for x in mask.layers() if x not in mask.dropped]
    tenths = mask.handed_on()
    for number, layer in enumerate(layers if tenths else ()):
        index = layer.partition(".")[2]
        worked[f"encoder_self.{index}"] = received
        if number < len(tenths):
            received = tenths[number] / TOKEN_UNITS
            worked[f"encoder_ffn.{index}"] = received
    return worked


def saved_share(mask: Mask, saved: Mapping[str, Array]) -> float:
    """The share of the dense time that a choice saves, by the cost table.

    What fewer tokens save adds up over the layers that hand them on. Heads and neurons save in
    proportion to the tokens that are left for them.
    """
    # Of tokens what counts is what is handed on, by layers that are left.
    counts = mask.counts() | dict(zip(token_sublayers(mask), mask.handed_on(), strict=True))
    worked = tokens_worked_on(mask)
    idle = {x for x in saved if kind_of(x) == TOKEN_KIND} - set(token_sublayers(mask))
    return sum(
        worked.get(name, 1.0) * float(shares[counts[name]])
        for name, shares in saved.items()
        if name not in idle
    )


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
