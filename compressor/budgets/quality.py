"""`--max-drop 0.3`: the most heads that can go without a shown drop of more than 0.3.

Heads go in the order of their scores, so masks are nested and the only question is how many. Each
answer is a real model, built, repaired and run on the test rows; a binary search needs few.

A probe is accepted unless the 95 % interval of the paired bootstrap lies wholly below the allowed
drop, that is, unless the test rows show that it loses more. The interval is that of one probe; it
does not account for having looked at several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compressor.budgets.counts import HEADS, select
from compressor.model.sublayers import Mask, Scores
from compressor.results import Comparison, QualityProbe
from compressor.tasks import Task


def main_comparison(comparisons: Sequence[Comparison], task: Task) -> Comparison:
    """The comparison in the task's main metric."""
    return next(found for found in comparisons if found.metric == task.main_metric)


def acceptable(comparison: Comparison, drop: float) -> bool:
    """Whether the 95 % interval of pruned minus dense reaches up to -`drop`; false for NaN."""
    return comparison.interval[1] >= -drop


def nested_mask(scores: Scores, full: Mask, floors: Mapping[str, int], kept: int) -> Mask:
    """The mask with `kept` heads; all masks of the same scores lie within one another."""
    return select(scores, full, {HEADS: kept}, floors)


def search(
    total: int, fewest: int, probe: Callable[[int], QualityProbe]
) -> tuple[int, list[QualityProbe]]:
    """Bisect for the smallest number of units whose candidate is accepted.

    The smallest number of all is tried first. Where acceptance does not rise with the units kept,
    what is found is still accepted, and one unit fewer was tried and is not.

    Args:
        total: all units; that many are accepted untried, being the dense model.
        fewest: units that must stay.
        probe: builds and judges the model with so many units.

    Returns:
        Heads to keep, and the probes in the order they were made.
    """
    if fewest == total:
        return total, []
    probes = [probe(fewest)]
    if probes[0].accepted:
        return fewest, probes
    refused, accepted = fewest, total
    while accepted - refused > 1:
        middle = (accepted + refused) // 2
        probes.append(probe(middle))
        if probes[-1].accepted:
            accepted = middle
        else:
            refused = middle
    return accepted, probes
