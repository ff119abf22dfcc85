"""The units that an artifact keeps by a learned mask."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from compressor.budgets import Budget, Limits
from compressor.learned_masks import LearnedMask, LearningJob, learn
from compressor.model.sublayers import Mask
from compressor.recovery.pruned import keep_weights
from compressor.steps.context import Context
from compressor.steps.values import ChosenUnits
from compressor.tasks.opened import ModelAndRows


def learn_units(
    name: str,
    budget: Budget,
    method: LearnedMask,
    limits: Limits,
    *,
    directory: Path,
    opened: ModelAndRows,
    context: Context,
) -> ChosenUnits:
    """What a learned mask keeps, of as many units as its budget wants.

    Args:
        name: of the artifact.
        budget: how many units to keep, or a penalty on them.
        method: how to learn.
        limits: what may go.
        directory: for weights that were trained with the mask.
        opened: the dense model, and the rows to learn from.
        context: how to compute.
    """
    checkpoint, progress = opened.checkpoint, context.progress
    keep, penalty = budget.to_learn(limits.full)
    job = LearningJob(
        model=checkpoint.model,
        layers=limits.sublayers(checkpoint.layers),
        examples=opened.examples,
        task=opened.task,
        keep=keep,
        penalty=penalty,
        floors=limits.floors,
        multiples=limits.multiples,
        seed=context.seed,
        device=context.device,
        state=context.state_file("gates.safetensors"),
        report=progress.message,
        progress=partial(progress.update, "training steps"),
    )
    learned = learn(method, job)
    mask = Mask({**limits.full.keep, **learned.mask.keep})
    trained = learned.model is not checkpoint.model
    weights = keep_weights(learned.model, directory) if trained else None
    return ChosenUnits(name, budget.text, mask, learned.scores, learned.text, weights=weights)
