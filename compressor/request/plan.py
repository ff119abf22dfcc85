"""From a recipe's budget to plans: one for each artifact that the run makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compressor.budgets import Budget, Limits
from compressor.errors import UsageError
from compressor.request.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """One budget and where its artifact goes.

    Args:
        budget: of this artifact alone.
        action: what choosing its units means, for messages.
    """

    name: str
    budget: Budget
    directory: Path
    action: str


def plan_artifacts(recipe: Recipe, limits: Limits, output: Path) -> list[Plan]:
    """One plan for each budget; several get a directory below `output` each.

    Raises:
        UsageError: the same budget twice, or one that the model or the method cannot meet.
    """
    budgets: Sequence[Budget] = recipe.budget.each()
    names = [budget.slug for budget in budgets]
    if len(set(names)) < len(names):
        raise UsageError(
            f"the same budget is asked for twice: {', '.join(b.text for b in budgets)}",
            id="budget-twice",
        )
    method = recipe.method
    for budget in budgets:
        budget.require_possible(limits)
        if recipe.learns:
            keep, _ = budget.to_learn(limits.full)
            method.check_size(keep or {}, limits.full)
    method.check_units(limits.units)
    alone = len(budgets) == 1
    return [
        Plan(
            name,
            budget,
            output if alone else output / name,
            budget.action(method.name if recipe.learns else ""),
        )
        for name, budget in zip(names, budgets, strict=True)
    ]
