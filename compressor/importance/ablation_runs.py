"""Ablation: runs of a model without one unit, with one alone, or without whole layers.

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2. Layers below
the ablated unit do not change and are not computed again, which saves about half of the work. (In
generation only the encoder's are reused: the decoder sees other tokens each time.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from compressor import parallel
from compressor.importance import Ablation, RawScores, ScoringJob
from compressor.model.modes import fixed_outputs, record_outputs
from compressor.model.sublayers import Sublayer
from compressor.model.surgery import gated, mask_gates
from compressor.tasks import Batch, Predictor

BLOCK = 32  # neurons
Unit = tuple[str, int]  # layer name, unit (the first one of a block of neurons)
Value = TypeVar("Value")


@torch.no_grad()
def ablation_scores(method: Ablation, scoring: ScoringJob) -> RawScores:
    """How much the loss grows, or the metric falls, when a unit is gated to zero.

    Neurons are gated `BLOCK` at a time in their stored order, and get equal shares of the block's
    effect.

    Args:
        method: whether to measure the loss or the metric.
        scoring: the model and the calibration batches.

    Returns:
        Differences in nats per loss term (target token, row), or in points of a metric from 0 to
        100.

    Raises:
        InputError: the metric is at its lowest value for the dense model and could show no loss.
    """
    layers = scoring.layers
    if method.measures_metric:
        assert scoring.metric is not None
        baseline, outputs = outputs_without_units(scoring, layers)
        scoring.require_above_chance("--ablate metric", baseline)
        dense, signature = scoring.metric(baseline)
        signature = f"decrease:{signature}"
        values = {layer.name: [0.0] * layer.units for layer in layers}
        for (name, unit), texts in outputs.items():
            values[name][unit] = dense - scoring.metric(texts)[0]
    else:
        values, signature = _mean_losses(scoring), "loss_increase:mean"
    for layer in layers:
        for block in blocks_of(scoring, layer):
            share = values[layer.name][block[0]] / len(block)
            for unit in block:
                values[layer.name][unit] = share
    passes = parallel.total(count_runs(scoring, layers))
    return RawScores(values, signature, forward_passes=passes)


def losses_alone(scoring: ScoringJob) -> dict[str, list[float]]:
    """Mean loss with each head the only one of its sublayer.

    Args:
        scoring: the model and the calibration batches.

    Returns:
        Sublayer name -> a loss per head, in nats per loss term; infinite for heads that the mask
        removes.
    """
    keep = scoring.mask.keep
    return {
        name: [loss if kept else math.inf for loss, kept in zip(losses, keep[name], strict=True)]
        for name, losses in _mean_losses(scoring, alone=True).items()
    }


@torch.no_grad()
def _mean_losses(scoring: ScoringJob, alone: bool = False) -> dict[str, list[float]]:
    """Mean losses by sublayer and unit; a block of neurons has its value at its first one.

    Returns:
        With `alone`, the loss with only this unit; otherwise the increase of the loss without it.
        In nats per loss term.
    """
    sums = {layer.name: torch.zeros(layer.units).double() for layer in scoring.layers}
    terms, baseline = 0, torch.tensor(0.0)

    def loss(batch: Batch) -> Tensor:
        return scoring.task.loss(scoring.model, batch)

    for batch, unit, value in ablated(scoring, scoring.layers, scoring.layers, loss, alone=alone):
        if unit is None:
            baseline = torch.zeros_like(value) if alone else value
            terms += scoring.task.loss_terms(batch)
        else:
            sums[unit[0]][unit[1]] += (value - baseline).cpu()
    parallel.add_up(*sums.values())
    terms = parallel.total(terms)
    return {name: (total / terms).tolist() for name, total in sums.items()}


@torch.no_grad()
def outputs_without_units(
    scoring: ScoringJob, layers: Sequence[Sublayer], num_beams: int | None = None
) -> tuple[list[str], dict[Unit, list[str]]]:
    """Outputs of the model with all units of the mask, and without each unit of some sublayers.

    Args:
        scoring: the model and the calibration batches.
        layers: whose units are removed one at a time (neurons in blocks).
        num_beams: width of the beam search; None for the task's.

    Returns:
        The texts in the order of all ranks' rows, and for each unit the same without it.
    """
    outputs: dict[Unit | None, dict[int, str]] = {}  # unit -> row -> output
    encoder = [layer for layer in scoring.layers if layer.stack == "encoder"]

    task = scoring.task
    assert isinstance(task, Predictor)  # the method refuses other tasks (`check_task`)

    def predict(batch: Batch) -> list[str]:
        return task.predict(scoring.model, batch, scoring.tokenizer, num_beams)

    for batch, unit, texts in ablated(scoring, layers, encoder, predict):
        outputs.setdefault(unit, {}).update(zip(batch.rows, texts, strict=True))
    for rank_outputs in parallel.gather(outputs):
        for unit, rows in rank_outputs.items():
            outputs.setdefault(unit, {}).update(rows)
    ordered = {unit: [rows[row] for row in sorted(rows)] for unit, rows in outputs.items()}
    baseline = ordered.pop(None)
    return baseline, {unit: texts for unit, texts in ordered.items() if unit is not None}


def blocks_of(scoring: ScoringJob, layer: Sublayer) -> list[list[int]]:
    """The units of a sublayer that are gated together: single heads, or up to `BLOCK` neurons."""
    kept, size = scoring.mask.kept(layer.name), 1 if layer.is_attention else BLOCK
    return [kept[start : start + size] for start in range(0, len(kept), size)]


def count_runs(scoring: ScoringJob, layers: Sequence[Sublayer]) -> int:
    """Return the number of runs that `ablated` makes on this rank."""
    return len(scoring.batches) * (1 + sum(len(blocks_of(scoring, layer)) for layer in layers))


def ablated(
    scoring: ScoringJob,
    layers: Sequence[Sublayer],
    recorded: Sequence[Sublayer],
    run: Callable[[Batch], Value],
    *,
    alone: bool = False,
) -> Iterator[tuple[Batch, Unit | None, Value]]:
    """Run batches with all units of the mask, and without each unit of some sublayers.

    Sublayers below the unit return their recorded outputs instead of being computed again.

    Args:
        scoring: the model and the batches.
        layers: whose units are gated to zero one at a time (neurons in blocks).
        recorded: sublayers whose outputs may be reused; in generation not those of the decoder.
        run: computes a result of a batch.
        alone: gate all other units of the sublayer instead.

    Yields:
        For each batch the result with all units (the unit is None), then one for each unit.
    """
    model, gates = scoring.model, mask_gates(scoring.mask)
    paths = {layer.layer_path for layer in recorded}
    done, total = 0, count_runs(scoring, layers)
    for batch in scoring.batches:
        batch = batch.to(scoring.device)
        with gated(model, scoring.layers, gates), record_outputs(model, paths) as outputs:
            baseline = run(batch)
        yield batch, None, baseline
        scoring.progress(done := done + 1, total)
        order = list(outputs)  # in order of execution
        for layer in layers:
            path = layer.layer_path
            below = order[: order.index(path)] if path in order else order
            for block in blocks_of(scoring, layer):
                gate = torch.tensor(scoring.mask.keep[layer.name], dtype=torch.float32)
                if alone:
                    gate.zero_()
                gate[block] = float(alone)
                with (
                    gated(model, scoring.layers, gates | {layer.name: gate}),
                    fixed_outputs(model, {path: outputs[path] for path in below}),
                ):
                    result = run(batch)
                yield batch, (layer.name, block[0]), result
                scoring.progress(done := done + 1, total)
