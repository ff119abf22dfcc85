"""What a choice of units starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compressor.budgets import Budget, Limits
from compressor.budgets.unit_costs import UnitCosts
from compressor.importance import UnitMethod
from compressor.model.sublayers import Mask
from compressor.tasks.opened import DataRows, ModelAndRows
from compressor.throughput.inspection import unit_costs


@dataclass(frozen=True)
class ArtifactPlan:
    """One of the run's budgets, and where its artifact goes."""

    name: str
    budget: Budget
    method: UnitMethod  # that scores units, or learns which to keep
    directory: Path = field(compare=False)


@dataclass(frozen=True)
class RemovalPlan:
    """What may go of a model, and how much of it goes in each artifact."""

    limits: Limits
    artifacts: Sequence[ArtifactPlan]

    @property
    def learns(self) -> bool:
        """Whether weights are trained with a learned mask."""
        return any(artifact.method.learns for artifact in self.artifacts)

    def prunable(self, source: ModelAndRows, data: DataRows) -> Prunable:
        """What may go of a model.

        Args:
            source: the model, with encoded rows.
            data: the rows of the run.

        Raises:
            UsageError: it is too large for a budget with all removed that may be.
        """
        costs = unit_costs(source.checkpoint, source.task, source.examples)
        for artifact in self.artifacts:
            artifact.budget.require_enough_may_go(self.limits, costs)
        return Prunable(source, data, self.limits, costs)


@dataclass(frozen=True)
class Prunable:
    """The model that units are removed from, the rows of the run, and what may go."""

    source: ModelAndRows
    data: DataRows
    limits: Limits
    costs: UnitCosts  # multiply-adds of what may go


@dataclass(frozen=True)
class Measuring:
    """How candidates are measured."""

    timing: Mapping[str, Any] | None  # keywords of `throughput.benchmark`; None: they are not
    precision: str  # to time in
    beams: int | None  # width of a translator's search; None for the artifact's own
    resamples: int  # of the bootstrap


def plan_removal(budget: Budget, method: UnitMethod, full: Mask, output: Path) -> RemovalPlan:
    """One artifact for each budget, if the model can meet it; several get a directory each.

    Args:
        budget: of the run, with one number or several.
        method: that scores units, or learns which to keep.
        full: all units of the model.
        output: the directory of the run.

    Raises:
        UsageError: a budget cannot be met, or the method cannot meet it.
    """
    limits = budget.limits(full)
    budgets: dict[str, Budget] = {each.slug: each for each in budget.each()}
    for each in budgets.values():
        each.require_possible(limits)
        if method.learns:
            keep, _ = each.to_learn(limits.full)
            method.check_size(keep or {}, limits.full)
    method.check_units(limits.units)
    artifacts = [
        ArtifactPlan(name, each, method, output if len(budgets) == 1 else output / name)
        for name, each in budgets.items()
    ]
    return RemovalPlan(limits, artifacts)
