"""Which heads go: from the recipe's method to a mask, and the weights that belong to it.

Scores give a mask at once or in steps; with a recovery method the model is repaired between the
steps, so that the next scores are those of the model that is really left. Learned masks come with
the weights they were trained with. Weights that differ from the checkpoint's are kept beside the
stage's result, so that a stopped run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compressor.budgets.counts import prune_in_steps
from compressor.importance import METHODS
from compressor.model.checkpoint import Checkpoint
from compressor.model.restore_shape import restore_shape
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import prune
from compressor.pipeline.build import Choice
from compressor.pipeline.context import Context, score_checkpoint_heads
from compressor.pipeline.plan import Plan
from compressor.pipeline.recipe import Recipe
from compressor.progress import Progress
from compressor.recovery import RECOVERIES, Recovered, Recovery, parse_recovery, recover
from compressor.tasks import Example, get_task


def choose_heads(context: Context, plan: Plan) -> Choice:
    """The mask of one budget by the recipe's method; a resumable stage."""
    recipe = context.recipe
    weights = context.workspace.state / f"weights-{plan.name}.safetensors"
    how, title = _scored, f"choosing heads to {plan.budget.text}"
    if recipe.method not in METHODS:
        how, title = _learned, f"learning with {recipe.method} which heads to keep"
        title += f" ({plan.budget.text})"
    data = context.workspace.stage(f"heads-{plan.name}", title, lambda: how(context, plan, weights))
    forget(context, *(f"distill-{plan.name}-{step}" for step in range(1, recipe.steps)))
    forget(context, f"gates-{plan.name}", f"gates-{plan.name}-fit")
    if data["text"]:
        context.progress.message(f"  {data['text']}")
    heads = {name: len(flags) for name, flags in context.full.keep.items()}
    mask = Mask.from_json(data["kept"], heads)
    model = _read_weights(context, weights) if weights.exists() else context.checkpoint.model
    return Choice(mask, Scores.from_json(data), model, data["text"])


def _scored(context: Context, plan: Plan, weights: Path) -> dict[str, Any]:
    """Scores and the mask that follows from them; the first scores serve all budgets."""
    recipe, full, dense = context.recipe, context.full, context.checkpoint.model
    repairs = recipe.steps > 1 and bool(parse_recovery(recipe.recover))
    model, step = dense, 0

    def score(mask: Mask) -> Scores:
        nonlocal model, step
        step += 1
        if mask == full:
            return first_scores(context)
        if repairs:
            pruned = prune(model, context.checkpoint.layers, mask)
            repaired = repair(context, pruned, f"{plan.name}-{step - 1}").model
            model = restore_shape(dense, repaired, context.checkpoint.layers, mask)
        return _score(context, mask, model)

    mask, scores = prune_in_steps(full, plan.budget, context.floors, recipe.steps, score)
    if model is not dense:
        _write_weights(model, weights)
    text = f"{recipe.steps} steps, repaired after each" if repairs else ""
    return {"kept": mask.to_json(), "text": text, **scores.to_json()}


def first_scores(context: Context) -> Scores:
    """Scores of all heads of the checkpoint, a stage that all budgets share."""
    data = context.workspace.stage(
        "scores",
        f"scoring {context.full.total()} heads with {context.recipe.method}",
        lambda: _score(context, context.full, context.checkpoint.model).to_json(),
    )
    return Scores.from_json(data)


def _score(context: Context, mask: Mask, model: nn.Module) -> Scores:
    return score_checkpoint_heads(
        context.recipe,
        context.checkpoint,
        context.examples,
        mask,
        context.device,
        context.progress,
        references=context.rows.targets,
        model=model,
    )


def _learned(context: Context, plan: Plan, weights: Path) -> dict[str, Any]:
    from compressor.learned_masks import LEARNED, Learning, learn

    recipe = context.recipe
    learned = learn(
        recipe.method,
        Learning(
            model=context.checkpoint.model,
            layers=context.checkpoint.layers,
            examples=context.examples,
            task=context.task,
            keep=None if recipe.penalty is not None else plan.budget.keep,
            floors=context.floors,
            weights=recipe.train_weights,
            epochs=recipe.gate_epochs,
            learning_rate=recipe.learning_rate or context.task.learning_rate,
            patience=recipe.patience,
            seed=recipe.seed,
            device=context.device,
            state=context.workspace.state / f"gates-{plan.name}.safetensors",
            report=context.progress.message,
            progress=lambda done, total: context.progress.update("training steps", done, total),
        ),
        **{name: getattr(recipe, name) for name in LEARNED[recipe.method].options},
    )
    if learned.model is not context.checkpoint.model:
        _write_weights(learned.model, weights)
    kept = learned.mask.to_json()
    return {"kept": kept, "text": learned.text, **learned.scores.to_json()}


def repair(context: Context, pruned: nn.Module, name: str) -> Recovered:
    """Run the recipe's recovery on a pruned model, which stays as it is.

    Args:
        name: of the model, for the file from which a stopped training goes on.
    """
    return repair_checkpoint(
        context.recipe,
        context.checkpoint,
        context.examples,
        pruned,
        context.device,
        context.progress,
        context.workspace.state / f"distill-{name}.safetensors",
    )


def forget(context: Context, *names: str) -> None:
    """Remove the states of trainings whose stage is finished: several times the model each."""
    for name in names:
        (context.workspace.state / f"{name}.safetensors").unlink(missing_ok=True)


def repair_checkpoint(
    recipe: Recipe,
    checkpoint: Checkpoint,
    examples: Sequence[Example],
    pruned: nn.Module,
    device: str,
    progress: Progress,
    state: Path | None = None,
) -> Recovered:
    """Run a recipe's recovery, with a checkpoint's model as what to come close to."""
    job = Recovery(
        dense=checkpoint.model,
        pruned=pruned,
        layers=checkpoint.layers,
        task=get_task(checkpoint.entry.task),
        examples=examples,
        seed=recipe.seed,
        device=device,
        progress=lambda done, total: progress.update("repair", done, total),
        report=progress.message,
        state=state,
    )
    options = {
        "epochs": recipe.distill_epochs,
        "learning_rate": recipe.learning_rate or get_task(checkpoint.entry.task).learning_rate,
        "patience": recipe.patience,
    }
    methods = {
        name: {option: options[option] for option in RECOVERIES[name].options}
        for name in parse_recovery(recipe.recover)
    }
    return recover(methods, job)


def _write_weights(model: nn.Module, path: Path) -> None:
    from safetensors.torch import save_file

    # Tied weights share memory, which the file format refuses: every name gets a copy.
    tensors = {n: t.to("cpu", copy=True).contiguous() for n, t in model.state_dict().items()}
    temporary = path.with_suffix(".tmp")
    save_file(tensors, temporary)
    temporary.replace(path)


def _read_weights(context: Context, path: Path) -> nn.Module:
    import copy

    from safetensors.torch import load_file

    model = copy.deepcopy(context.checkpoint.model)
    with torch.no_grad():
        model.load_state_dict(load_file(path))
    return model
