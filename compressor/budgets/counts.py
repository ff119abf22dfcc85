"""`--keep` and `--remove`: a number of units, or a fraction; `--penalty`: as many as it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Self

from compressor.budgets.base import Budget, Choice, Evaluator, Limits
from compressor.budgets.units import parse_amount, select
from compressor.errors import UsageError
from compressor.model.sublayers import UNITS_OF, Mask, Scores, Units, belongs, kind_of, units_of
from compressor.options.bounds import MOST_STEPS, Amounts
from compressor.options.declare import option


class Counts(Budget):
    """A number of units, or a fraction of them."""

    keep: Amounts = option(
        [],
        selects=True,
        help="Heads to keep: 0.5, 36; or heads=0.7,neurons=0.5; or cross=0.8,encoder_ffn=0.3. "
        "Repeat for several budgets.",
    )
    remove: Amounts = option([], selects=True, help="Units to remove, written like --keep.")

    def each(self) -> Sequence[Self]:
        kept = [self.model_copy(update={"keep": [x], "remove": []}) for x in self.keep]
        return kept + [self.model_copy(update={"keep": [], "remove": [x]}) for x in self.remove]

    @property
    def text(self) -> str:
        return f"keep {self.keep[0]}" if self.keep else f"remove {self.remove[0]}"

    def amounts(self, full: Mask) -> dict[str, int]:
        """Units to keep per pool, of the budget of one artifact."""
        if self.keep:
            return parse_amount("keep", self.keep[0], full)
        return parse_amount("remove", self.remove[0], full)

    def units(self, full: Mask) -> frozenset[Units]:
        return frozenset(units_of(pool) for one in self.each() for pool in one.amounts(full))

    def require_possible(self, limits: Limits) -> None:
        for pool, wanted in self.amounts(limits.full).items():
            totals = limits.full.totals().items()
            sizes = {name: size for name, size in totals if belongs(name, pool)}
            needed = sum(min(size, limits.floors[kind_of(name)]) for name, size in sizes.items())
            if wanted < needed:
                unit = f"{UNITS_OF[pool]} of {pool}" if pool in UNITS_OF else pool
                raise UsageError(
                    f"{self.text} leaves {wanted:,} {unit}, but the floors of its {len(sizes)} "
                    f"sublayers need {needed:,}; keep more, or lower --floor (0 lets a sublayer "
                    "lose all)",
                    id="floors-too-high",
                )

    def to_learn(self, full: Mask) -> tuple[dict[str, int] | None, float | None]:
        return self.amounts(full), None

    def choose(self, evaluator: Evaluator) -> Choice:
        limits = evaluator.limits

        def cut_to(target: Mapping[str, int], scores: Scores, mask: Mask) -> Mask:
            return select(scores, mask, target, limits.floors, limits.multiples)

        targets = step_targets(limits.full, self.amounts(limits.full), self.scorings)
        return evaluator.cut_in_steps([partial(cut_to, target) for target in targets])


class SteppedCounts(Counts):
    """A number of units, or a fraction of them, at once or in steps; several budgets in one run."""

    steps: int = option(
        1, ge=1, le=MOST_STEPS, help="Remove in so many steps; scores anew before each."
    )

    @property
    def scorings(self) -> int:
        return self.steps


class Penalty(Budget):
    """As many heads as a penalty on open gates leaves (hard concrete gates)."""

    penalty: float = option(
        gt=0,
        allow_inf_nan=False,
        selects=True,
        help="hard-concrete: lambda, nats per open head, instead of heads to keep.",
    )

    by_penalty: ClassVar[bool] = True

    @property
    def text(self) -> str:
        return f"penalty {self.penalty:g}"

    def units(self, full: Mask) -> frozenset[Units]:
        return frozenset({"heads"})  # per open head, as in Voita et al. 2019 (docs/gates.md)

    def to_learn(self, full: Mask) -> tuple[dict[str, int] | None, float | None]:
        return None, self.penalty

    def choose(self, evaluator: Evaluator) -> Choice:
        raise AssertionError("gates choose, by the penalty of `to_learn`")


def step_targets(full: Mask, keep: Mapping[str, int], steps: int) -> list[dict[str, int]]:
    """Units to keep per pool after each of `steps` equal steps from `full` to `keep`.

    Steps without effect are left out; there is at least one.
    """
    targets = []
    left = {pool: full.total(pool) for pool in keep}
    for step in range(1, steps + 1):
        wanted = {
            pool: full.total(pool) - round((full.total(pool) - kept) * step / steps)
            for pool, kept in keep.items()
        }
        if wanted != left:
            targets.append(wanted)
        left = wanted
    return targets or [left]
