"""From a recipe to a plan: checked and resolved once, before anything is opened."""

from __future__ import annotations

from pathlib import Path

from compressor.request.plan import RunPlan
from compressor.request.recipe import Recipe
from compressor.request.validate import check_recipe, gate_rules
from compressor.runtime.session import choose_device


def resolve(recipe: Recipe) -> RunPlan:
    """What a recipe asks for, as far as that can be checked without the model.

    What the device decides is resolved, so that the recipe of an artifact says what was done.

    Raises:
        UsageError: its options do not go together, or a rule of its gate is malformed.
        EnvironmentProblem: weights are to be trained on a device that is not usable.
    """
    rules = gate_rules(recipe.gate)
    check_recipe(recipe, rules)
    source, target = recipe.export.source_text, recipe.export.target_text
    plan = RunPlan(
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
        options={**recipe.options, "device": recipe.device},  # a launcher may have said it
    )
    if not any(step.trains for step in recipe.recovery):
        return plan
    device = _training_device(recipe.device)
    return plan.with_recovery([step.on_device(device) for step in recipe.recovery])


def _training_device(wanted: str) -> str:
    """Where both torch and onnxruntime can compute.

    Raises:
        EnvironmentProblem: a device was named that is not usable.
    """
    if choose_device(wanted) == "cpu":
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
