"""`--max-drop 0.3`: the smallest model that loses no more than 0.3 of the main metric.

Bisects a path of nested masks; each candidate is built and run. A search picks a model that was
also lucky on its rows, so its result is judged once more on held-out rows. docs/budgets.md has all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from compressor.budgets.base import Choice, Judge, Limits, Scorer
from compressor.budgets.competing import SearchedUnits
from compressor.budgets.removal_path import PathCut, removal_path
from compressor.budgets.unit_costs import UnitCosts
from compressor.errors import UsageError
from compressor.model.sublayers import Scores
from compressor.options.bounds import NonNegative
from compressor.options.declare import option
from compressor.steps.results import ROUNDING, Comparison, QualityCandidate, QualitySearch

ERROR = 0.05  # one-sided, of all looks at the held-out rows together

Proof = Literal["bound", "measured"]  # what a smaller model must show


def error_of_look(number: int) -> float:
    """One-sided error of the `number`th test of a model on the same rows, from 1: 5 %/2^number.

    Of the first, the bound is the lower end of a 95 % interval; all of them add up to `ERROR`.
    """
    return ERROR / 2.0**number


def is_within(comparison: Comparison, drop: float) -> bool:
    """Whether a measured drop, on the metric's own scale, is at most `drop`; false for NaN."""
    return -comparison.difference <= drop + ROUNDING


def accepted(candidate: QualityCandidate, drop: float, proof: Proof) -> bool:
    """Whether the measured drop is within `drop`, and where `proof` asks for it the bound, too."""
    is_proven = -candidate.bound <= drop + ROUNDING
    return is_within(candidate.comparison, drop) and (proof == "measured" or is_proven)


def bisect_largest(last: int, accepts: Callable[[int], bool]) -> int:
    """Bisect for the largest cut that is accepted, of positions 0 (dense, accepted) to `last`.

    Also where acceptance does not fall along the path, the result is accepted, and the next larger
    cut was tried and is not.
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
class SearchResult:
    """What a search found."""

    position: int  # of the model to deliver; 0 if only the dense one is within the limit
    proven: bool  # whether its bound on the held-out rows is within the limit
    candidates: list[QualityCandidate]  # judged on the rows of the search, in this order
    looks: list[QualityCandidate]  # judged on the held-out rows, in this order


def search_and_confirm(
    last: int, drop: float, proof: Proof, judge: Callable[[int, int], QualityCandidate]
) -> SearchResult:
    """Search for the largest cut, up to `last`, within a limit; held-out rows confirm it.

    `judge(position, look)` builds the model at a position and judges it: for look 0 on the rows of
    the search, for looks from 1 on the held-out rows. Where none can be proven, the result is the
    largest cut that was looked at and whose measured drop on the held-out rows is within the limit.
    """
    candidates: dict[int, QualityCandidate] = {}
    looks: dict[int, QualityCandidate] = {}

    def accepts(position: int) -> bool:
        if position not in candidates:
            candidates[position] = judge(position, 0)
        return accepted(candidates[position], drop, proof)

    position = bisect_largest(last, accepts)
    if position == 0 and proof == "bound":
        # Nothing can be proven. What was judged before is not judged again.
        proof = "measured"
        position = bisect_largest(last, accepts)
    while position:
        looks[position] = judge(position, len(looks) + 1)
        if accepted(looks[position], drop, proof):
            break
        # The next smaller cut that the search accepted; beyond those, half the cut until one is.
        known = [other for other in candidates if other < position and accepts(other)]
        position = max(known, default=position // 2)
        while position and not accepts(position):
            position //= 2
    if position == 0:
        position = max(
            (p for p, seen in looks.items() if is_within(seen.comparison, drop)), default=0
        )
    is_proven = position > 0 and accepted(looks[position], drop, "bound")
    return SearchResult(position, is_proven, list(candidates.values()), list(looks.values()))


class MaxDrop(SearchedUnits):
    """The smallest model that loses no more than this of the main metric."""

    max_drop: NonNegative = option(
        selects=True,
        help="The smallest model whose main metric (BLEU, accuracy, ...) on held-out test rows is "
        "shown to fall by at most this, as in 0.3.",
    )
    drop_proof: Proof = option(
        "bound",
        help="Evidence required by --max-drop: bound (the lower confidence bound is within it) or "
        "measured (the measured drop is).",
    )

    @property
    def allowed_drop(self) -> float:
        """The drop of the option."""
        return self.max_drop

    @property
    def text(self) -> str:
        """The budget in words: `max-drop 0.3`."""
        return f"max-drop {self.max_drop:.15g}"

    def choose(
        self,
        limits: Limits,
        costs: UnitCosts,
        scorer: Scorer,
        judge: Judge,
        report: Callable[[str], None],
    ) -> Choice:
        """Search the path of cuts by error per cost for the last one within the drop.

        Raises:
            UsageError: no model that was tried is within it.
        """
        scores = scorer.scores(limits.start)
        self.require_possible(limits)  # without dropped layers
        path = removal_path(
            scores, limits.start, limits.floors, costs, limits.multiples, limits.even
        )
        rows, held_out = judge.rows, judge.held_out
        report(
            f"  searching on {rows.rows:,} of the {rows.rows + held_out:,} test rows; the other "
            f"{held_out:,} are held out for the final figures"
        )

        def judge_cut(position: int, look: int) -> QualityCandidate:
            cut = PathCut(position, path.mask(position), path.shares[position])
            return self._judged(judge, cut, scores, look, report)

        result = search_and_confirm(
            len(path) - 1, self.max_drop, self._proof(judge, report), judge_cut
        )
        if result.position == 0:
            seen = result.looks or result.candidates
            best = max(seen, key=lambda candidate: candidate.comparison.difference)
            least = -best.comparison.difference
            if math.isfinite(least):  # rounded up, so that it can be allowed
                least = math.ceil(100 * (least - ROUNDING)) / 100
            raise UsageError(
                f"{self.flag_text}: no smaller model that was tried is within it; the one with "
                f"{path.mask(best.position)} loses least, {least:.2f} {judge.metric}; allow that "
                "much, or add --recover reconstruct+distill",
                id="max-drop-unreachable",
            )
        search = QualitySearch(
            drop=self.max_drop,
            metric=judge.metric,
            probes=result.candidates,
            proof=self.drop_proof,
            rows=rows,
            held_out=held_out,
            looks=result.looks,
            delivered=result.position,
            proven=result.proven,
        )
        count = "1 model" if len(result.candidates) == 1 else f"{len(result.candidates)} models"
        text = f"searched on {rows.rows:,} test rows, {count} built and run"
        return Choice(path.mask(result.position), scores, text, search)

    def _judged(
        self,
        judge: Judge,
        cut: PathCut,
        scores: Scores,
        look: int,
        report: Callable[[str], None],
    ) -> QualityCandidate:
        """A cut, accepted or not; `look` counts those on the held-out rows, 0 is the search."""
        # A search is as strict as the first look, which the chosen cut has to pass.
        error = error_of_look(max(look, 1))
        judged = judge.candidate(cut, scores, error, held_out=look > 0)
        is_accepted = accepted(judged, self.max_drop, self.drop_proof)
        refused = "not proven" if is_within(judged.comparison, self.max_drop) else "refused"
        report(
            f"  {'on the held-out rows: ' if look else ''}{cut.mask}: "
            f"{judged.comparison.metric} {judged.comparison.difference:+.2f}, bound "
            f"{judged.bound:+.2f}: {'accepted' if is_accepted else refused}"
        )
        return judged.model_copy(update={"accepted": is_accepted})

    def _proof(self, judge: Judge, report: Callable[[str], None]) -> Proof:
        """What a smaller model must show: no bound where the rows can prove none."""
        if self.drop_proof == "measured":
            return "measured"
        least = judge.least_provable_drop(error_of_look(1))
        if least <= self.max_drop + ROUNDING:
            return "bound"
        report(
            f"  {judge.rows.rows:,} rows cannot prove a drop of less than {least:.2f} "
            f"{judge.metric}, not even for a model without one changed answer; the search goes by "
            "the measured drop"
        )
        return "measured"
