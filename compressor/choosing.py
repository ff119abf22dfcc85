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

from compressor.budget import prune_in_steps
from compressor.checkpoint import Checkpoint
from compressor.heads import HeadMask, HeadScores
from compressor.importance import METHODS
from compressor.journey import Journey, score_checkpoint_heads
from compressor.planning import Plan
from compressor.recipe import Recipe
from compressor.recovery import Recovery, parse_recovery, recover
from compressor.recovery.twin import dense_twin
from compressor.stages import Choice, scores_from_json, scores_to_json
from compressor.surgery import prune
from compressor.talk import Talk
from compressor.tasks import Example, task_module
from compressor.training import LEARNING_RATES


def choose_heads(journey: Journey, plan: Plan) -> Choice:
    """The mask of one budget by the recipe's method; a resumable stage."""
    recipe = journey.recipe
    weights = journey.workspace.state / f"weights-{plan.name}.safetensors"
    how, title = _scored, f"choosing heads to {plan.budget.text}"
    if recipe.method not in METHODS:
        how, title = _learned, f"learning with {recipe.method} which heads to keep"
        title += f" ({plan.budget.text})"
    data = journey.workspace.stage(f"heads-{plan.name}", title, lambda: how(journey, plan, weights))
    forget(journey, *(f"distill-{plan.name}-{step}" for step in range(1, recipe.steps)))
    forget(journey, f"gates-{plan.name}", f"gates-{plan.name}-fit")
    if data["text"]:
        journey.talk.say(f"  {data['text']}")
    heads = {name: len(flags) for name, flags in journey.full.keep.items()}
    mask = HeadMask.from_json(data["kept"], heads)
    model = _read_weights(journey, weights) if weights.exists() else journey.checkpoint.model
    return Choice(mask, scores_from_json(data), model, data["text"])


def _scored(journey: Journey, plan: Plan, weights: Path) -> dict[str, Any]:
    """Scores and the mask that follows from them; the first scores serve all budgets."""
    recipe, full, dense = journey.recipe, journey.full, journey.checkpoint.model
    repairs = recipe.steps > 1 and bool(parse_recovery(recipe.recover))
    model, step = dense, 0

    def score(mask: HeadMask) -> HeadScores:
        nonlocal model, step
        step += 1
        if mask == full:
            return first_scores(journey)
        if repairs:
            pruned = prune(model, journey.checkpoint.layers, mask)
            repair(journey, pruned, mask, f"{plan.name}-{step - 1}")
            model = dense_twin(dense, pruned, journey.checkpoint.layers, mask)
        return _score(journey, mask, model)

    mask, scores = prune_in_steps(full, plan.budget, journey.floors, recipe.steps, score)
    if model is not dense:
        _write_weights(model, weights)
    text = f"{recipe.steps} steps, repaired after each" if repairs else ""
    return {"kept": mask.to_json(), "text": text, **scores_to_json(scores)}


def first_scores(journey: Journey) -> HeadScores:
    """Scores of all heads of the checkpoint, a stage that all budgets share."""
    data = journey.workspace.stage(
        "scores",
        f"scoring {journey.full.total()} heads with {journey.recipe.method}",
        lambda: scores_to_json(_score(journey, journey.full, journey.checkpoint.model)),
    )
    return scores_from_json(data)


def _score(journey: Journey, mask: HeadMask, model: nn.Module) -> HeadScores:
    return score_checkpoint_heads(
        journey.recipe,
        journey.checkpoint,
        journey.examples,
        mask,
        journey.device,
        journey.talk,
        references=journey.rows.targets,
        model=model,
    )


def _learned(journey: Journey, plan: Plan, weights: Path) -> dict[str, Any]:
    from compressor.gates import Learning, learn

    recipe = journey.recipe
    learned = learn(
        recipe.method,
        Learning(
            model=journey.checkpoint.model,
            layers=journey.checkpoint.layers,
            examples=journey.examples,
            task=journey.task,
            keep=None if recipe.penalty is not None else plan.budget.keep,
            floors=journey.floors,
            penalty=recipe.penalty,
            weights=recipe.train_weights,
            estimator=recipe.estimator,
            epochs=recipe.gate_epochs,
            learning_rate=recipe.learning_rate or LEARNING_RATES[journey.checkpoint.entry.task],
            gate_learning_rate=recipe.gate_learning_rate,
            patience=recipe.patience,
            seed=recipe.seed,
            device=journey.device,
            state=journey.workspace.state / f"gates-{plan.name}.safetensors",
            report=journey.talk.say,
            progress=lambda done, total: journey.talk.progress("training steps", done, total),
        ),
    )
    if learned.model is not journey.checkpoint.model:
        _write_weights(learned.model, weights)
    kept = learned.mask.to_json()
    return {"kept": kept, "text": learned.text, **scores_to_json(learned.scores)}


def repair(journey: Journey, pruned: nn.Module, mask: HeadMask, name: str) -> str:
    """Run the recipe's recovery on a pruned model; returns what was done, in words.

    Args:
        name: of the model, for the file from which a stopped training goes on.
    """
    return repair_checkpoint(
        journey.recipe,
        journey.checkpoint,
        journey.examples,
        pruned,
        mask,
        journey.device,
        journey.talk,
        journey.workspace.state / f"distill-{name}.safetensors",
    )


def forget(journey: Journey, *names: str) -> None:
    """Remove the states of trainings whose stage is finished: several times the model each."""
    for name in names:
        (journey.workspace.state / f"{name}.safetensors").unlink(missing_ok=True)


def repair_checkpoint(
    recipe: Recipe,
    checkpoint: Checkpoint,
    examples: Sequence[Example],
    pruned: nn.Module,
    mask: HeadMask,
    device: str,
    talk: Talk,
    state: Path | None = None,
) -> str:
    """Run a recipe's recovery, with a checkpoint's model as what to come close to."""
    task = task_module(checkpoint.entry.task)
    job = Recovery(
        dense=checkpoint.model,
        pruned=pruned,
        layers=checkpoint.layers,
        mask=mask,
        batches=task.batches(examples, checkpoint.model) if parse_recovery(recipe.recover) else [],
        task=task,
        examples=examples,
        seed=recipe.seed,
        device=device,
        progress=lambda done, total: talk.progress("repair", done, total),
        report=talk.say,
        epochs=recipe.distill_epochs,
        learning_rate=recipe.learning_rate or LEARNING_RATES[checkpoint.entry.task],
        patience=recipe.patience,
        state=state,
    )
    return recover(recipe.recover, job)


def _write_weights(model: nn.Module, path: Path) -> None:
    from safetensors.torch import save_file

    # Tied weights share memory, which the file format refuses: every name gets a copy.
    tensors = {n: t.to("cpu", copy=True).contiguous() for n, t in model.state_dict().items()}
    temporary = path.with_suffix(".tmp")
    save_file(tensors, temporary)
    temporary.replace(path)


def _read_weights(journey: Journey, path: Path) -> nn.Module:
    import copy

    from safetensors.torch import load_file

    model = copy.deepcopy(journey.checkpoint.model)
    with torch.no_grad():
        model.load_state_dict(load_file(path))
    return model
