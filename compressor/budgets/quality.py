"""`--max-drop 0.3`: the smallest model that loses no more than 0.3 of the main metric.

Cuts lie on a path of nested masks (`compressor.budgets.path`), from the dense model to the smallest
one allowed, and the only question is how far to go. Each answer is a real model, built, repaired
and run on test rows; a binary search needs few.

A cut is accepted if its measured drop is within the limit and, unless `--drop-proof measured`, its
lower confidence bound is too: the burden of proof is the pruned model's. If no cut can be proven,
the largest is taken that the measured drop allows, and `Found` says that it is not proven.

A search picks, among models that it measured, one that did well on its rows by luck as well. So
the model it ends with is judged once more, on rows that were held out. If these refuse it, the next
smaller cut is judged on them, and so on. Look k tests with a one-sided error of 5 %/2^k, so that
all looks together let a model that loses more than the limit pass in at most 5 % of all runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from compressor.budgets.counts import Proof
from compressor.results import Comparison, QualityProbe
from compressor.tasks import Task

ERROR = 0.05  # one-sided, of all looks at the held-out rows together
# In binary floating point a drop of exactly 0.5 may come out as 0.5000000000000071.
ROUNDING = 1e-9

Probe = Callable[[int], QualityProbe]
Look = Callable[[int, int], QualityProbe]


def main_comparison(comparisons: Sequence[Comparison], task: Task) -> Comparison:
    """The comparison in the task's main metric."""
    return next(found for found in comparisons if found.metric == task.main_metric)


def error_of_look(number: int) -> float:
    """One-sided error of the `number`th test of a model on the same rows, counted from 1.

    Of the first, the bound is the lower end of a 95 % interval; all of them add up to `ERROR`.
    """
    return ERROR / 2.0**number


def within(probe: QualityProbe, drop: float) -> bool:
    """Whether the measured drop is at most `drop`; false for NaN."""
    return -probe.comparison.difference <= drop + ROUNDING


def proven(probe: QualityProbe, drop: float) -> bool:
    """Whether the bound shows that the drop is at most `drop`; false for NaN."""
    return probe.bound is not None and -probe.bound <= drop + ROUNDING


def accepted(probe: QualityProbe, drop: float, proof: Proof) -> bool:
    """Whether a cut's measured drop, and where it must be proven its bound, is within the limit."""
    return within(probe, drop) and (proof == "measured" or proven(probe, drop))


def search(last: int, accepts: Callable[[int], bool]) -> int:
    """Bisect for the largest cut that is accepted.

    The largest of all is tried first. Where acceptance does not fall along the path, what is found
    is still accepted, and the next larger cut was tried and is not.

    Args:
        last: position of the largest cut; position 0 is the dense model, accepted untried.
        accepts: builds and judges the model at a position.
    """
    if last == 0 or accepts(last):
        return last
    good, bad = 0, last
    while bad - good > 1:
        middle = (good + bad) // 2
        if accepts(middle):
            good = middle
        else:
            bad = middle
    return good


@dataclass(frozen=True)
class Found:
    """What a search ended with.

    Args:
        position: of the model to deliver; 0 if only the dense one is within the limit.
        proven: whether its bound on the held-out rows is within the limit.
        probes: models judged on the rows of the search, in the order they were made.
        looks: models judged on the held-out rows, in this order.
    """

    position: int
    proven: bool
    probes: list[QualityProbe]
    looks: list[QualityProbe]


def find(last: int, drop: float, proof: Proof, probe: Probe, look: Look) -> Found:
    """Search for the largest cut within a limit, and confirm it on the held-out rows.

    Where none can be proven, the largest cut is found that was within the limit as measured: on
    the rows of the search, and of those looked at on the held-out rows as well.

    Args:
        last: position of the largest cut on the path.
        proof: what a model must show; see `accepted`.
        probe: builds the model at a position and judges it on the rows of the search.
        look: judges the model at a position, which was built, on the held-out rows; takes the
            number of the look, for `error_of_look`.
    """
    probes: dict[int, QualityProbe] = {}
    looks: dict[int, QualityProbe] = {}

    def accepts(position: int) -> bool:
        if position not in probes:
            probes[position] = probe(position)
        return accepted(probes[position], drop, proof)

    position = search(last, accepts)
    if position == 0 and proof == "bound":
        proof = "measured"
        position = search(last, accepts)
    while position:
        looks[position] = look(position, len(looks) + 1)
        if accepted(looks[position], drop, proof):
            break
        position = _next_smaller(position, probes, accepts)
    if position == 0:
        position = max((p for p, seen in looks.items() if within(seen, drop)), default=0)
    is_proven = position > 0 and proven(looks[position], drop)
    return Found(position, is_proven, list(probes.values()), list(looks.values()))


def _next_smaller(position: int, tried: Iterable[int], accepts: Callable[[int], bool]) -> int:
    """The next smaller cut that the search accepted; beyond those, half the cut until one is."""
    known = [other for other in tried if other < position and accepts(other)]
    if known:
        return max(known)
    position //= 2
    while position and not accepts(position):
        position //= 2
    return position
