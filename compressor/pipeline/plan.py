"""How many heads a run keeps: its budgets checked, one plan for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compressor.budgets.counts import Budget, QualityBudget, SpeedBudget, parse_budget
from compressor.errors import UsageError
from compressor.importance import METHODS
from compressor.learned_masks import LEARNED, check_learning
from compressor.model.sublayers import Mask
from compressor.pipeline.recipe import Recipe
from compressor.recovery import parse_recovery


@dataclass(frozen=True)
class Plan:
    """One budget and where its artifact goes."""

    name: str
    budget: Budget
    directory: Path


def plan_budgets(recipe: Recipe, full: Mask, output: Path) -> list[Plan]:
    """One plan for each `keep` and `remove` of the recipe, or for its one measured budget.

    Raises:
        UsageError: none given, budgets of different sorts, the same one twice, or one the model or
            the method cannot meet.
    """
    budgets = [parse_budget("keep", text, full) for text in recipe.keep]
    budgets += [parse_budget("remove", text, full) for text in recipe.remove]
    measured: list[Budget] = [QualityBudget.of(drop) for drop in recipe.drop_budgets]
    if recipe.speedup is not None:
        measured.append(SpeedBudget.of(recipe.speedup, recipe.at_batch))
    budgets += measured
    if recipe.method in LEARNED:
        _check_learning(recipe, counted=bool(budgets))
    if recipe.penalty is not None:
        budgets.append(Budget(f"penalty {recipe.penalty:g}", {}))
    if not budgets:
        raise UsageError("say how many heads to keep, for example --keep 0.5 or --remove 12")
    if measured:
        _require_alone(recipe, budgets, measured[0])
    slugs = [budget.slug for budget in budgets]
    if len(set(slugs)) < len(slugs):
        raise UsageError(
            f"the same budget is asked for twice: {', '.join(b.text for b in budgets)}"
        )
    if len(budgets) == 1:
        return [Plan(slugs[0], budgets[0], output)]
    return [Plan(s, b, output / s) for s, b in zip(slugs, budgets, strict=True)]


def _check_learning(recipe: Recipe, *, counted: bool) -> None:
    if recipe.steps > 1:
        raise UsageError(
            f"--steps {recipe.steps} does not go with --method {recipe.method}, which learns the "
            "whole mask at once; leave it out"
        )
    if recipe.train_weights != "none" and "reconstruct" in parse_recovery(recipe.recover):
        raise UsageError(
            f"--recover {recipe.recover} would re-solve what --train-weights "
            f"{recipe.train_weights} trains, towards the weights before; use --recover none, "
            "which is the default with trained weights, or distill"
        )
    check_learning(
        recipe.method,
        counted=counted,
        penalty=recipe.penalty,
        estimator=recipe.estimator,
        weights=recipe.train_weights,
        epochs=recipe.gate_epochs,
    )


def _require_alone(recipe: Recipe, budgets: Sequence[Budget], budget: Budget) -> None:
    """Refuse what a measured budget does not go with."""
    if len(budgets) > 1:
        raise UsageError(
            f"a run has budgets of one sort, not {', '.join(b.text for b in budgets)}; give "
            "--keep and --remove, or --speedup, or one plain --max-drop"
        )
    if recipe.steps > 1:
        raise UsageError(
            f"--steps {recipe.steps} does not go with {budget.text}, which works from one scoring; "
            "leave it out"
        )
    if recipe.method not in METHODS:
        raise UsageError(
            f"--method {recipe.method} does not go with {budget.text}, which needs scores from one "
            f"of {', '.join(METHODS)}"
        )
