"""Budgets that are computed: a number of units, what a penalty leaves, or a share of the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field

from compressor.budgets.base import (
    Budget,
    Choice,
    Limits,
    Scorer,
    cut_in_steps,
)
from compressor.budgets.competing import CompetingUnits, scores_of_none
from compressor.budgets.removal_path import RemovalPath, removal_path
from compressor.budgets.unit_costs import UnitCosts
from compressor.budgets.units import names_tokens, parse_amount, select
from compressor.errors import UsageError
from compressor.model.sublayers import UNITS_OF, Mask, Scores, Units, belongs, kind_of, units_of
from compressor.options.bounds import MOST_STEPS, Amounts, Positive
from compressor.options.declare import option, split_commas

STEPS = option(1, ge=1, le=MOST_STEPS, help="Remove in so many steps; scores anew before each.")
Shares = Annotated[list[Annotated[float, Field(gt=0, lt=1)]], BeforeValidator(split_commas)]


class Counts(Budget):
    """A number of units, or a fraction of them."""

    keep: Amounts = option(
        [],
        selects=True,
        help="Heads to keep: 0.5, 36; or heads=0.7,neurons=0.5; or cross=0.8,encoder_ffn=0.3; or "
        "tokens=0.5. Repeat for several budgets.",
    )
    remove: Amounts = option([], selects=True, help="Units to remove, written like --keep.")

    def each(self) -> Sequence[Self]:
        """One budget for each number that is given."""
        kept = [self.model_copy(update={"keep": [x], "remove": []}) for x in self.keep]
        return kept + [self.model_copy(update={"keep": [], "remove": [x]}) for x in self.remove]

    @property
    def text(self) -> str:
        """The budget in words: `keep 0.5` or `remove 12`."""
        return f"keep {self.keep[0]}" if self.keep else f"remove {self.remove[0]}"

    @property
    def asks_for_tokens(self) -> str:
        """`--keep tokens=0.5`, the same to remove, or a floor of tokens."""
        named = (x.flag_text for x in self.each() if names_tokens(x.text.partition(" ")[2]))
        return next(named, super().asks_for_tokens)

    def amounts(self, full: Mask) -> dict[str, int]:
        """Pool -> units to keep, of a model with these units; UsageError for what it lacks."""
        mode: Literal["keep", "remove"] = "keep" if self.keep else "remove"
        text = (self.keep or self.remove)[0]
        return parse_amount(mode, text, full.with_tokens() if names_tokens(text) else full)

    def units(self, full: Mask) -> frozenset[Units]:
        """The units of the pools that it names."""
        return frozenset(units_of(pool) for one in self.each() for pool in one.amounts(full))

    def require_possible(self, limits: Limits) -> None:
        """Raise `UsageError` if the floors keep more units than it wants in a pool."""
        amounts = self.amounts(limits.full)
        totals = limits.full.totals()
        for pool, wanted in amounts.items():
            sizes = {name: size for name, size in totals.items() if belongs(name, pool)}
            needed = sum(min(size, limits.floors[kind_of(name)]) for name, size in sizes.items())
            if wanted < needed:
                unit = f"{UNITS_OF[pool]} of {pool}" if pool in UNITS_OF else pool
                unit = f"tenths of {unit}" if units_of(pool) == "tokens" else unit
                raise UsageError(
                    f"{self.flag_text} leaves {wanted:,} {unit}, but the floors of its "
                    f"{len(sizes)} sublayers need {needed:,}; keep more, or lower --floor "
                    "(0 lets a sublayer lose all)",
                    id="floors-too-high",
                )

    def to_learn(self, full: Mask) -> tuple[dict[str, int] | None, float | None]:
        """The units to keep per pool."""
        return self.amounts(full), None

    def choose(self, limits: Limits, scorer: Scorer) -> Choice:
        """Remove the units with the lowest scores, in as many steps as `scorings` says."""

        def cut_to(target: Mapping[str, int], scores: Scores, mask: Mask) -> Mask:
            return select(scores, mask, target, limits.floors, limits.multiples)

        targets = step_targets(limits.full, self.amounts(limits.full), self.scorings)
        return cut_in_steps([partial(cut_to, target) for target in targets], limits, scorer)


class SteppedCounts(Counts):
    """A number of units, or a fraction of them, at once or in steps; several budgets in one run."""

    steps: int = STEPS

    @property
    def scorings(self) -> int:
        """Once for each step."""
        return self.steps


def step_targets(full: Mask, keep: Mapping[str, int], steps: int) -> list[dict[str, int]]:
    """Units to keep per pool after each of `steps` equal steps that has an effect."""
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


class Penalty(Budget):
    """The heads that a penalty on open gates leaves (hard concrete gates)."""

    penalty: Positive = option(
        selects=True, help="hard-concrete: lambda, nats per open head, instead of heads to keep."
    )

    by_penalty: ClassVar[bool] = True

    @property
    def text(self) -> str:
        """The budget in words: `penalty 0.05`."""
        return f"penalty {self.penalty:g}"

    def units(self, full: Mask) -> frozenset[Units]:
        """Heads alone."""
        return frozenset({"heads"})  # per open head, as in Voita et al. 2019 (docs/gates.md)

    def to_learn(self, full: Mask) -> tuple[dict[str, int] | None, float | None]:
        """The penalty, in nats per open head."""
        return None, self.penalty

    def choose(self) -> Choice:
        """Never called: gates choose, by the penalty of `to_learn`."""
        raise AssertionError("gates choose, by the penalty of `to_learn`")


class Macs(CompetingUnits):
    """A share of the dense model's multiply-adds, heads, neurons and tokens by error per cost."""

    macs: Shares = option(
        min_length=1,
        selects=True,
        help="Share of the dense model's multiply-adds to keep, as in 0.5; several: 0.7,0.5,0.3.",
    )
    steps: int = STEPS

    needs_scores: ClassVar[str] = "a share of the multiply-adds"

    def each(self) -> Sequence[Self]:
        """One budget for each share."""
        return [self.model_copy(update={"macs": [share]}) for share in self.macs]

    @property
    def text(self) -> str:
        """The budget in words: `macs 0.5`."""
        return f"macs {self.macs[0]:.15g}"

    @property
    def scorings(self) -> int:
        """Once for each step."""
        return self.steps

    def require_enough_may_go(self, limits: Limits, costs: UnitCosts) -> None:
        """Raise `UsageError` if more is left when all is removed that may be."""
        if not limits.to_drop:  # else how much is left depends on which layers these are
            _longest_path(limits, costs).position_at(self.macs[0])

    def least_share(self, limits: Limits, costs: UnitCosts) -> float:
        """The smallest share of the multiply-adds that can be asked for."""
        return _longest_path(limits, costs).shares[-1]

    def choose(self, limits: Limits, costs: UnitCosts, scorer: Scorer) -> Choice:
        """Remove the units with the lowest score per cost, down to the share of `macs`.

        Raises:
            UsageError: more is left when all is removed that may be.
        """

        def cut_to(share: float, scores: Scores, mask: Mask) -> Mask:
            path = removal_path(scores, mask, limits.floors, costs, limits.multiples, limits.even)
            return path.mask(path.position_at(share))

        removed, steps = 1 - self.macs[0], self.steps
        shares = [1 - removed * step / steps for step in range(1, steps + 1)]
        return cut_in_steps([partial(cut_to, share) for share in shares], limits, scorer)


def _longest_path(limits: Limits, costs: UnitCosts) -> RemovalPath:
    """From all units to the fewest; scores order a path, and do not change where it ends."""
    scores, floors = scores_of_none(limits), limits.floors
    return removal_path(scores, limits.start, floors, costs, limits.multiples, limits.even)
