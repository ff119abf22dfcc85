"""`--speedup`: the cheapest loss that makes a model so much faster on this machine.

What a head costs is measured, not counted: for every kind of attention the model with all layers
of the kind at n heads is timed against the dense one (`compressor.pipeline.time_masks`). From these
timings follows what each layer saves at n heads; from the scores, what it loses. Choosing one head
count per layer so that the savings suffice and the losses add up to the least is a multiple-choice
knapsack, solved by dynamic programming over finely divided time. ZipLM (Kurtic et al. 2023) prunes
by such a table of measured times, with SPDY's dynamic program (Frantar & Alistarh 2022).

Savings of different layers are taken to add up. Where they do not, the measured speed-up of the
choice says so, and `reach` asks the table for more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compressor.budgets.counts import ALL, fewest_units, select
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores, kind_of
from compressor.results import CostTable, LayerCost, SpeedTry, Timing

Array = NDArray[np.float64]

# A choice that misses the wanted speed-up is followed by at most so many tighter ones.
RETRIES = 3
# Steps that the wanted saving is divided into. Rounding wastes less than one step per layer:
# of a model with 36 layers 0.2 % of the saving at most.
_STEPS = 20_000


@dataclass(frozen=True)
class Candidate:
    """Heads to keep, and the speed-up that the cost table expects of them."""

    mask: Mask
    predicted: float


def counts_to_measure(heads: int, floor: int) -> list[int]:
    """Head counts below `heads` that a kind of attention is timed at, ascending.

    Quarters, or every count where there are at most four; one head beside none, because nothing
    can be interpolated there: without heads the layer's fixed cost goes as well.
    """
    wanted = range(heads) if heads <= 4 else (0, 1, *(heads * part // 4 for part in (1, 2, 3)))
    lowest = min(floor, heads)
    return sorted({max(count, lowest) for count in wanted} - {heads})


def trial_mask(full: Mask, kind: str, heads: int) -> Mask:
    """The mask that keeps the first `heads` heads in every layer of a kind, all of the others.

    Which heads stay does not matter for the time.
    """
    return full.without(
        (name, head)
        for name, flags in full.keep.items()
        if kind_of(name) == kind
        for head in range(heads, len(flags))
    )


def layer_costs(kind: str, layers: int, timings: Mapping[int, Timing]) -> list[LayerCost]:
    """Rows of the cost table for one kind, from timings of `trial_mask`'s models against dense.

    Savings are made to never fall as heads go, by isotonic regression, and to be no less than
    none: time lost by removing heads is noise, and would otherwise be chosen for or against.

    Args:
        layers: number of layers of the kind.
        timings: head count -> timing, with the speed-up over dense.
    """
    from scipy.optimize import isotonic_regression

    counts = sorted(timings, reverse=True)
    shares = [(1 - 1 / _speedup(timings[count])) / layers for count in counts]
    rising = isotonic_regression(shares).x
    return [
        LayerCost(
            kind=kind,
            heads=count,
            layers=layers,
            speedup=_speedup(timings[count]),
            speedup_interval=_interval(timings[count]),
            saved_share=max(0.0, float(share)),
        )
        for count, share in zip(counts, rising, strict=True)
    ]


def _speedup(timing: Timing) -> float:
    assert timing.speedup is not None
    return timing.speedup


def _interval(timing: Timing) -> tuple[float, float]:
    assert timing.speedup_interval is not None
    return timing.speedup_interval


def savings(table: CostTable, full: Mask) -> dict[str, Array]:
    """Share of the dense time that each layer saves at 0, 1, … all heads, linear between rows.

    Below the fewest heads that were measured, the saving is that of the fewest.
    """
    found = {}
    for name, flags in full.keep.items():
        rows = [row for row in table.rows if row.kind == kind_of(name)]
        points = {len(flags): 0.0} | {row.heads: row.saved_share for row in rows}
        counts = sorted(points)
        shares = [points[count] for count in counts]
        found[name] = np.interp(np.arange(len(flags) + 1), counts, shares)
    return found


def choose(
    scores: Scores,
    full: Mask,
    floors: Mapping[str, int],
    table: CostTable,
    speedup: float,
) -> Candidate | None:
    """The mask with the least summed score of removed heads that the table says is fast enough.

    A layer that keeps n heads keeps those with the highest scores; for `second-order` the sum of
    the others' scores is exactly the error of removing them together.

    Args:
        floors: least number of heads in each layer of a kind.
        speedup: over dense, above 1.

    Returns:
        None where even `fewest` heads are not fast enough.
    """
    saved = savings(table, full)
    order = {name: sorted(range(len(s)), key=s.__getitem__) for name, s in scores.values.items()}
    options, losses, gains = [], [], []
    for name, flags in full.keep.items():
        heads = len(flags)
        removable = range(heads - min(floors[kind_of(name)], heads) + 1)
        ascending = [scores.values[name][head] for head in order[name]]
        options.append(removable)
        losses.append(np.concatenate([[0.0], np.cumsum(ascending)])[: len(removable)])
        gains.append(saved[name][[heads - count for count in removable]])
    chosen = cheapest(losses, gains, 1 - 1 / speedup)
    if chosen is None:
        return None
    mask = full.without(
        (name, head)
        for name, place in zip(full.keep, chosen, strict=True)
        for head in order[name][:place]
    )
    return Candidate(mask, predicted_speedup(mask, saved))


def fewest(scores: Scores, full: Mask, floors: Mapping[str, int], table: CostTable) -> Candidate:
    """Every layer down to its floor: the fastest that there is."""
    mask = select(scores, full, {ALL: fewest_units(full, floors)}, floors)
    return Candidate(mask, predicted_speedup(mask, savings(table, full)))


def predicted_speedup(mask: Mask, saved: Mapping[str, Array]) -> float:
    """Dense time over the time that is left, by the cost table."""
    left = 1 - sum(float(saved[name][count]) for name, count in mask.counts().items())
    return 1 / left if left > 0 else math.inf  # savings add up to more than all only by noise


def cheapest(losses: Sequence[Array], gains: Sequence[Array], wanted: float) -> list[int] | None:
    """Multiple-choice knapsack: one option per item, enough gain in all, the least summed loss.

    Gains are rounded down to multiples of `wanted / _STEPS`, so what is found is always enough;
    its loss is the least among all choices that stay enough after that rounding.

    Args:
        losses, gains: per item, one number per option; gains are not negative.
        wanted: the gain to reach, above 0.

    Returns:
        The option of every item, the earliest of equally good ones; None if the most there is
        to gain is not enough.
    """
    step = wanted / _STEPS
    places = np.arange(_STEPS + 1)
    # least[j]: least loss with which the items seen so far gain at least j steps.
    least = np.full(_STEPS + 1, np.inf)
    least[0] = 0.0
    taken: list[tuple[NDArray[np.intp], NDArray[np.int64]]] = []
    for loss, gain in zip(losses, gains, strict=True):
        units = np.minimum(np.floor(gain / step), _STEPS).astype(np.int64)
        sums = np.stack(
            [
                lost + least[np.maximum(0, places - won)]
                for lost, won in zip(loss, units, strict=True)
            ]
        )  # [options, steps + 1]
        best = sums.argmin(axis=0)
        least = sums[best, places]
        taken.append((best, units))
    if not np.isfinite(least[_STEPS]):
        most = [int(np.argmax(gain)) for gain in gains]
        reached = sum(gain[place] for gain, place in zip(gains, most, strict=True))
        return most if reached >= wanted else None
    chosen, need = [], _STEPS
    for best, units in reversed(taken):
        option = int(best[need])
        chosen.append(option)
        need = max(0, need - int(units[option]))
    return chosen[::-1]


def reach(
    wanted: float,
    choose: Callable[[float], Candidate | None],
    fewest: Candidate,
    measure: Callable[[Mask, int], Timing],
) -> tuple[Mask, list[SpeedTry]]:
    """Choose heads, time the choice, and ask for more where it misses, `RETRIES` times at most.

    Args:
        wanted: speed-up over dense.
        choose: the cheapest choice that the cost table expects to reach a speed-up.
        fewest: the fastest choice, tried where the table expects none to be enough.
        measure: times a choice against dense; it also gets the number of the try, from 1.

    Returns:
        The first choice that reached `wanted`, else the fastest measured; and all tries.

    Raises:
        UsageError: even `fewest` was measured to be slower.
    """
    tries: list[SpeedTry] = []
    masks: list[Mask] = []
    aim = wanted
    for number in range(1, RETRIES + 2):
        choice = choose(aim) or fewest
        timing = measure(choice.mask, number)
        speedup = _speedup(timing)
        masks.append(choice.mask)
        tries.append(
            SpeedTry(
                aim=aim,
                predicted=choice.predicted,
                kept=choice.mask.count(),
                speedup=speedup,
                speedup_interval=_interval(timing),
                met=speedup >= wanted,
            )
        )
        if speedup >= wanted:
            return choice.mask, tries
        if choice.mask.counts() == fewest.mask.counts():
            raise UsageError(_unreachable(wanted, tries, fewest.mask), id="speedup-unreachable")
        # What was predicted is what this choice was good for, and may be more than was asked.
        aim = choice.predicted * wanted / speedup
    fastest = max(range(len(tries)), key=lambda place: tries[place].speedup)
    return masks[fastest], tries


def _unreachable(wanted: float, tries: Sequence[SpeedTry], mask: Mask) -> str:
    most = max(found.speedup for found in tries)
    return (
        f"--speedup {wanted:g} cannot be reached here: the largest that was measured is "
        f"{most:.3f}, with {mask.count()} of {mask.total()} heads kept as the floors demand; "
        "ask for less" + (", or lower --floor (0 lets a layer lose all)" if mask.count() else "")
    )
