"""A recipe is checked and resolved once, before anything is opened."""

from __future__ import annotations

from compressor.request.recipe import Recipe
from compressor.request.validate import check_recipe
from compressor.runtime.session import choose_device


def resolve(recipe: Recipe) -> Recipe:
    """The recipe with what the device decides, so that an artifact's recipe says what was done.

    Raises:
        UsageError: its options do not go together, or a rule of its gate is malformed.
        EnvironmentProblem: weights are to be trained on a device that is not usable.
    """
    check_recipe(recipe)
    # A launcher may have set the device.
    options = {**recipe.options, "device": recipe.device}
    recipe = recipe.model_copy(update={"options": options})
    if not any(step.trains for step in recipe.recovery):
        return recipe
    device = choose_device(recipe.device)
    if device == "cuda":  # of onnxruntime; torch must be able to compute there, too
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    return recipe.with_recovery([step.on_device(device) for step in recipe.recovery])
