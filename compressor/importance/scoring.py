"""Scores of units, and the layers that matter least, over the rows of an opened model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torch import nn

from compressor import parallel
from compressor.evaluation import main_metric, require_above_chance
from compressor.importance import ScoringJob, ScoringMethod, UnitMethod, score_units
from compressor.importance.depth import layers_to_drop
from compressor.model.sublayers import Mask, Scores, Sublayer
from compressor.model.surgery import skipped
from compressor.steps.context import Context
from compressor.tasks.opened import ModelAndRows


def score(
    mask: Mask,
    method: UnitMethod,
    sublayers: Sequence[Sublayer],
    *,
    opened: ModelAndRows,
    context: Context,
    model: nn.Module | None = None,
) -> Scores:
    """Scores of all units of some sublayers, of the checkpoint's model or another of its shape.

    Args:
        mask: units that it removes are gated to zero and score zero; layers that it drops are
            skipped, and their units have no scores.
        method: how to score.
        sublayers: of the checkpoint, whose units are scored.
        opened: the checkpoint, and the rows to score on.
        context: how to compute.
        model: with the checkpoint's shape and other weights; None: the checkpoint's.
    """
    assert isinstance(method, ScoringMethod)
    task, rows = opened.task, opened.rows
    progress = context.progress
    model = model or opened.checkpoint.model
    examples = parallel.shard(opened.examples) if method.needs_rows else []

    def require_metric_sees(asked: str, answers: Sequence[str]) -> None:
        if rows is not None and mask.count() == mask.total():
            require_above_chance(rows, answers, asked)

    scoring = ScoringJob(
        model=model.to(context.device),
        mask=mask,
        layers=[x for x in sublayers if x.layer not in mask.dropped],
        batches=task.batches(examples, model, device=context.device),
        task=task,
        tokenizer=opened.checkpoint.tokenizer,
        metric=None if rows is None else lambda answers: main_metric(rows, answers),
        require_above_chance=require_metric_sees,
        seed=context.seed,
        device=context.device,
        report=progress.message,
        progress=partial(progress.update, "scoring"),
    )
    try:
        with skipped(model, opened.checkpoint.layers, mask):
            return parallel.agree(score_units(method, scoring))
    finally:
        model.to("cpu")


def find_layers(
    numbers: Mapping[str, int], dropped: Sequence[str], *, opened: ModelAndRows, context: Context
) -> dict[str, float]:
    """The layers whose skipping changes predictions least, in the order in which they go.

    Args:
        numbers: stack -> how many of its layers go.
        dropped: layers that go before.
        opened: the model, and the rows whose predictions count.
        context: how to compute.

    Returns:
        Layer, as `decoder.2` -> divergence from the dense model without it and those before, nats.
    """
    model, layers = opened.checkpoint.model, opened.checkpoint.layers
    batches = opened.task.batches(parallel.shard(opened.examples), model, device=context.device)
    report = partial(context.progress.update, "layers")
    return layers_to_drop(
        model, layers, batches, opened.task, numbers, context.device, report, dropped
    )
