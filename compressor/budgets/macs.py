"""`--macs`: a share of the dense model's multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field

from compressor.budgets.base import Choice, CompetingUnits, Evaluator, Limits
from compressor.budgets.path import RemovalPath, UnitCosts, removal_path
from compressor.model.sublayers import Mask, Scores, units_of
from compressor.options.bounds import MOST_STEPS
from compressor.options.declare import option, split_commas

Shares = Annotated[list[Annotated[float, Field(gt=0, lt=1)]], BeforeValidator(split_commas)]


class Macs(CompetingUnits):
    """A share of the dense model's multiply-adds, heads and neurons by error per cost."""

    macs: Shares = option(
        min_length=1,
        selects=True,
        help="Share of the dense model's multiply-adds to keep, as in 0.5; several: 0.7,0.5,0.3.",
    )
    steps: int = option(
        1, ge=1, le=MOST_STEPS, help="Remove in so many steps; scores anew before each."
    )

    needs_scores: ClassVar[str] = "a share of the multiply-adds"

    def each(self) -> Sequence[Self]:
        return [self.model_copy(update={"macs": [share]}) for share in self.macs]

    @property
    def text(self) -> str:
        return f"macs {self.macs[0]:.15g}"

    @property
    def scorings(self) -> int:
        return self.steps

    def require_enough_may_go(self, limits: Limits, costs: UnitCosts) -> None:
        if not limits.to_drop:  # else how much is left depends on which layers these are
            share = self.macs[0]
            _longest_path(limits, costs).position_at(share, asked=f"--macs {share:g}")

    def least_share(self, limits: Limits, costs: UnitCosts) -> float:
        """The smallest share of the multiply-adds that can be asked for."""
        return _longest_path(limits, costs).shares[-1]

    def choose(self, evaluator: Evaluator) -> Choice:
        limits, costs = evaluator.limits, evaluator.costs

        def cut_to(share: float, scores: Scores, mask: Mask) -> Mask:
            path = removal_path(scores, mask, limits.floors, costs, limits.multiples, limits.even)
            return path.mask(path.position_at(share, asked=f"--macs {share:g}"))

        removed, steps = 1 - self.macs[0], self.steps
        return evaluator.cut_in_steps(
            [partial(cut_to, 1 - removed * step / steps) for step in range(1, steps + 1)]
        )


def _longest_path(limits: Limits, costs: UnitCosts) -> RemovalPath:
    """From all units to the fewest; scores order a path, and do not change where it ends."""
    values = {
        name: (0.0,) * count
        for name, count in limits.full.totals().items()
        if units_of(name) in limits.units
    }
    scores = Scores(values, "none", "", {})
    return removal_path(scores, limits.full, limits.floors, costs, limits.multiples, limits.even)
