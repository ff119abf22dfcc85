"""From a recipe to a plan: checked and resolved once, before anything is opened."""

from __future__ import annotations

from pathlib import Path

from compressor.request.plan import RunPlan
from compressor.request.recipe import Recipe
from compressor.request.validate import check_recipe, gate_rules


def resolve(recipe: Recipe) -> RunPlan:
    """What a recipe asks for, as far as that can be checked without the model.

    Raises:
        UsageError: its sections do not go together, or a rule of its gate is malformed.
    """
    rules = gate_rules(recipe.gate)
    check_recipe(recipe, rules)
    source, target = recipe.export.source_text, recipe.export.target_text
    return RunPlan(
        model=recipe.model,
        data=recipe.data,
        method=recipe.method,
        budget=recipe.budget,
        recovery=recipe.recovery,
        precision=recipe.export.precision,
        engines=recipe.export.engines,
        source_text=None if source is None else Path(source),
        target_text=None if target is None else Path(target),
        evaluation=recipe.evaluation,
        throughput=recipe.throughput,
        card=recipe.card,
        rules=rules,
        inconclusive=recipe.gate.inconclusive,
        seed=recipe.seed,
        device=recipe.device,
        options=recipe.model_dump(),
    )
