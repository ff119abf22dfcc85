"""Scores of units, and divergences of layers, by one method over the calibration rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torch import nn

from compressor import parallel
from compressor.evaluation import main_metric, require_sight
from compressor.importance import ScoringJob, ScoringMethod, UnitMethod, score_units
from compressor.importance.depth import layers_to_drop
from compressor.model.depth import skipped
from compressor.model.sublayers import Mask, Scores, Sublayer
from compressor.parallel.launch import counted
from compressor.pipeline.inputs import ModelAndRows
from compressor.progress import Progress


def score(
    mask: Mask,
    *,
    given: ModelAndRows,
    method: UnitMethod,
    sublayers: Sequence[Sublayer],
    seed: int,
    device: str,
    progress: Progress,
    model: nn.Module | None = None,
) -> Scores:
    """Scores of all units of some sublayers.

    Args:
        mask: units that are left; the others are gated to zero and score zero. Layers that it
            drops are skipped; their units have no scores.
        model: one of the checkpoint's shape, to be scored in its place.
    """
    assert isinstance(method, ScoringMethod)
    task, rows, layers = given.task, given.rows, given.checkpoint.layers
    model = model or given.checkpoint.model

    def require_metric_sees(asked: str, answers: Sequence[str]) -> None:
        if rows is not None and mask.count() == mask.total():
            require_sight(rows, answers, asked)

    scoring = ScoringJob(
        model=model.to(device),
        layers=[x for x in sublayers if x.layer not in mask.dropped],
        mask=mask,
        batches=task.batches(parallel.shard(given.examples), model) if method.needs_rows else [],
        task=task,
        tokenizer=given.checkpoint.tokenizer,
        metric=None if rows is None else lambda answers: main_metric(rows, answers),
        require_sight=require_metric_sees,
        seed=seed,
        device=device,
        progress=counted(partial(progress.update, "scoring")),
        report=progress.message,
    )
    try:
        with skipped(model, layers, mask):
            return parallel.agree(score_units(method, scoring))
    finally:
        model.to("cpu")


def find_layers(
    numbers: Mapping[str, int],
    dropped: Sequence[str],
    *,
    given: ModelAndRows,
    device: str,
    progress: Progress,
) -> dict[str, float]:
    """The layers whose skipping changes predictions least, and the divergence in nats; in order.

    Args:
        numbers: stack -> how many of its layers go.
        dropped: layers that went before.
    """
    model, layers = given.checkpoint.model, given.checkpoint.layers
    batches, report = given.task.batches(parallel.shard(given.examples), model), progress.update
    return layers_to_drop(
        model, layers, batches, given.task, numbers, device, partial(report, "layers"), dropped
    )
