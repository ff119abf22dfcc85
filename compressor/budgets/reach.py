"""`--speedup`: choices of units are timed until one is as fast as wanted, and not much faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from compressor.budgets.base import UNREACHABLE, Limits
from compressor.budgets.cost_table import Array, choose, saved_share, speedup_of
from compressor.budgets.units import removal_groups
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores
from compressor.steps.results import SpeedTry, Timing, delivered

RETRIES = 6  # other choices after one that is not as fast as wanted; each is exported and timed
MISSES = 4  # after so many, the fewest units are timed
CLOSE = 1.05  # times the wanted speed-up; a choice that is faster gives away quality
_AIM = 1.02  # times the wanted speed-up, between a choice that misses it and one that is too fast
_LARGEST = 1000.0  # speed-up to tell, where savings add up to all of the time or more


def next_share(
    wanted: float, shares: Sequence[float], speedups: Sequence[float], total: float
) -> float:
    """The share of the dense time that a choice is to save by the table, after those that missed.

    Measured savings are taken to be proportional to those of the table; half as much again at most.
    Where the line through the last two choices asks for more, it gets up to half of what the table
    has left: a curve that bends does not take all units at once. After `MISSES` all are asked for,
    which shows whether the speed can be reached.

    Args:
        wanted: the speed-up.
        shares: that choices save by the table, which may add up to more than 1.
        speedups: of these choices, measured.
        total: what the fewest units save by the table.
    """
    if len(shares) >= MISSES:
        return total
    share, measured = shares[-1], 1 - 1 / speedups[-1]
    missing, most = 1 - 1 / wanted - measured, 1.5 * share
    asked = share + share * missing / measured if measured > 0 else most
    if len(shares) > 1:
        more, gained = share - shares[-2], measured - (1 - 1 / speedups[-2])
        if more > 0 and gained > 0:
            asked = max(asked, min(share + missing * more / gained, (share + total) / 2))
    return min(asked, most)


def share_between(wanted: float, shares: Sequence[float], speedups: Sequence[float]) -> float:
    """The share of the dense time that a choice is to save by the table, after a too fast one.

    It lies on the line through the slowest choice that is fast enough and the fastest that is not;
    the dense model is one. After two misses it lies halfway between these choices.

    Args:
        wanted: the speed-up.
        shares: that choices save by the table.
        speedups: of these choices, measured.
    """
    points = [(1 - 1 / speedup, share) for share, speedup in zip(shares, speedups, strict=True)]
    saved = 1 - 1 / wanted
    more, high = min(point for point in points if point[0] >= saved)
    less, low = max([(0.0, 0.0), *(point for point in points if point[0] < saved)])
    if len(speedups) > 1 and max(speedups[-2:]) < wanted:
        return (low + high) / 2  # a curve that the line does not follow
    aim = min(1 - 1 / (_AIM * wanted), (more + saved) / 2)
    return low + (high - low) * (aim - less) / (more - less)


def reach(
    wanted: float,
    scores: Scores,
    limits: Limits,
    saved: Mapping[str, Array],
    measure: Callable[[Mask, int], Timing],
) -> tuple[Mask, list[SpeedTry]]:
    """Choose units, time them, and ask for more where they miss, for less where they are too fast.

    Args:
        wanted: the speed-up.
        scores: of the units.
        limits: what may go.
        saved: see `savings`.
        measure: times a choice; it also gets the number of the try, from 1.

    Returns:
        The slowest choice that reached `wanted`, else the fastest, and all tries, of which
        `RETRIES` follow the first at most.

    Raises:
        UsageError: the fewest units are slower.
    """
    tries: list[SpeedTry] = []
    masks: list[Mask] = []
    shares: list[float] = []
    start, share = limits.start, 1 - 1 / wanted
    groups = removal_groups(scores, start, limits.floors, limits.multiples, limits.even)
    smallest = start.without(unit for group in chain(*groups) for unit in group.units)
    for number in range(1, RETRIES + 2):
        # So much of the table's savings is counted on that what is wanted takes this share of it.
        left = (1 - 1 / wanted) / share
        expected = {name: left * savings for name, savings in saved.items()}
        mask = choose(scores, limits, expected, wanted)
        # By counts alone: which units stay does not matter for the time.
        known = mask.counts() in [one.counts() for one in masks]
        if known and any(one.met for one in tries):
            break
        speedup, interval = speedup_of(measure(mask, number))
        masks.append(mask)
        # What this choice saves may be more than was asked.
        shares.append(saved_share(mask, saved))
        tried = SpeedTry(
            aim=_predicted(share),
            predicted=_predicted(shares[-1]),
            kept=str(mask),
            speedup=speedup,
            speedup_interval=interval,
            met=speedup >= wanted,
        )
        tries.append(tried)
        speedups = [one.speedup for one in tries]
        if wanted <= speedup <= CLOSE * wanted:
            break
        if max(speedups) < wanted and mask.counts() == smallest.counts():
            lower = ", or lower --floor (0 lets a sublayer lose all)"
            has_units = smallest.count() > smallest.count("tokens")
            raise UsageError(
                f"--speedup {wanted:g} cannot be reached here: the largest that was measured is "
                f"{max(speedups):.3f}, with {smallest} kept as the floors "
                f"demand; ask for less{lower if has_units else ''}",
                id=UNREACHABLE,
            )
        if max(speedups) < wanted:
            share = next_share(wanted, shares, speedups, saved_share(smallest, saved))
        else:
            share = share_between(wanted, shares, speedups)
    return masks[tries.index(delivered(tries))], tries


def _predicted(share: float) -> float:
    """The speed-up of a saved share of the dense time, at most `_LARGEST`."""
    return 1 / max(1 - share, 1 / _LARGEST)
