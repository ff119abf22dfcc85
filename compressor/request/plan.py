"""From a recipe's budget to plans: one for each artifact that the run makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compressor.budgets.counts import (
    MULTIPLES,
    Budget,
    MacsBudget,
    Multiples,
    QualityBudget,
    SpeedBudget,
    parse_budget,
    parse_floors,
    parse_multiples,
)
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Units, units_of
from compressor.request.recipe import Recipe
from compressor.request.sections import Counts, Macs, MaxDrop, Penalty, Speedup


@dataclass(frozen=True)
class Plan:
    """One budget and where its artifact goes.

    Args:
        action: what choosing its units means, for messages.
    """

    name: str
    budget: Budget
    directory: Path
    action: str


AnyBudget = Counts | Macs | Speedup | MaxDrop | Penalty


def budgets_of(section: AnyBudget, full: Mask) -> list[Budget]:
    """The budgets that a recipe's section asks for, for a model with the units of `full`.

    Raises:
        UsageError: a budget that the model cannot meet.
    """
    if isinstance(section, Counts):
        kept = [parse_budget("keep", text, full) for text in section.keep]
        return kept + [parse_budget("remove", text, full) for text in section.remove]
    if isinstance(section, Macs):
        return [MacsBudget.of(share) for share in section.macs]
    if isinstance(section, Speedup):
        return [SpeedBudget.of(section.speedup, section.at_batch)]
    if isinstance(section, MaxDrop):
        return [QualityBudget.of(section.max_drop, section.drop_proof)]
    return [Budget(f"penalty {section.penalty:g}", {})]


def floors_of(section: AnyBudget, full: Mask) -> dict[str, int]:
    """Least number of units by kind; where heads and neurons compete, none unless asked for.

    Raises:
        UsageError: no such kind, or not a number.
    """
    competes = isinstance(section, Macs | Speedup | MaxDrop)
    return parse_floors(section.floor or ("0" if competes else "1"), full)


def multiples_of(section: AnyBudget, full: Mask) -> Multiples:
    """In which groups units go.

    Raises:
        UsageError: not whole numbers of heads or neurons.
    """
    return MULTIPLES if section.multiple is None else parse_multiples(section.multiple, full)


def units_to_prune(section: AnyBudget, budgets: Sequence[Budget]) -> set[Units]:
    """Whether heads go, or neurons, or both."""
    if isinstance(section, Counts):
        return {units_of(pool) for budget in budgets for pool in budget.keep}
    if isinstance(section, Penalty):
        return {"heads"}
    return {"heads", "neurons"} if section.prune == "both" else {section.prune}


def plan_budgets(recipe: Recipe, full: Mask, output: Path) -> list[Plan]:
    """One plan for each budget; several get a directory below `output` each.

    Raises:
        UsageError: the same budget twice, or one that the model cannot meet.
    """
    budgets = budgets_of(recipe.budget, full)
    names = [budget.slug for budget in budgets]
    if len(set(names)) < len(names):
        raise UsageError(
            f"the same budget is asked for twice: {', '.join(b.text for b in budgets)}",
            id="budget-twice",
        )
    alone = len(budgets) == 1
    return [
        Plan(name, budget, output if alone else output / name, _action(recipe, budget))
        for name, budget in zip(names, budgets, strict=True)
    ]


def _action(recipe: Recipe, budget: Budget) -> str:
    if budget.measured:
        return f"searching units for {budget.text}"
    if recipe.learns:
        return f"learning with {recipe.method.name} which units to keep ({budget.text})"
    return f"choosing units: {budget.text}"


def own_recipe(recipe: Recipe, plan: Plan) -> Recipe:
    """The recipe that makes the artifact of one plan alone."""
    if isinstance(recipe.budget, Macs) and isinstance(plan.budget, MacsBudget):
        own = recipe.budget.model_copy(update={"macs": [plan.budget.share]})
        return recipe.model_copy(update={"budget": own})
    if not isinstance(recipe.budget, Counts):
        return recipe
    mode, _, amount = plan.budget.text.partition(" ")
    amounts: Mapping[str, list[str]] = {"keep": [], "remove": [], mode: [amount]}
    return recipe.model_copy(update={"budget": recipe.budget.model_copy(update=amounts)})
