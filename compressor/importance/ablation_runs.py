"""Ablation: runs of a model without one unit, with one alone, or without whole layers.

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2. Layers below
the ablated unit do not change and are not computed again, which saves about half of the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.importance import Ablation, RawScores, ScoringJob
from compressor.model.architectures import architecture_of
from compressor.model.modes import evaluating, fixed_outputs, returned
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import gated, mask_gates, skipped
from compressor.tasks import Batch, Objective

BLOCK = 32  # neurons
Unit = tuple[str, int]  # layer name, unit (the first one of a block of neurons)
Value = TypeVar("Value")


@torch.no_grad()
def ablation_scores(method: Ablation, scoring: ScoringJob) -> RawScores:
    """How much the loss grows, or the metric falls, when a unit is gated to zero.

    The loss is in nats per term (target token, row), the metric in points from 0 to 100. Neurons
    are gated `BLOCK` at a time in their stored order, and get equal shares of the block's effect.
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
    """Mean loss with each head alone in its layer, in nats per term; infinite for removed ones."""
    keep = scoring.mask.keep
    return {
        name: [loss if kept else math.inf for loss, kept in zip(losses, keep[name], strict=True)]
        for name, losses in _mean_losses(scoring, alone=True).items()
    }


@torch.no_grad()
def _mean_losses(scoring: ScoringJob, alone: bool = False) -> dict[str, list[float]]:
    """Of each unit alone, or how much without it they grow; of a block of neurons for the first."""
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
    """Outputs by row with all units of the mask, and without each of some layers."""
    outputs: dict[Unit | None, dict[int, str]] = {}  # unit -> row -> output
    encoder = [layer for layer in scoring.layers if layer.stack == "encoder"]

    def predict(batch: Batch) -> list[str]:
        return scoring.task.predict(scoring.model, batch, scoring.tokenizer, num_beams)

    for batch, unit, texts in ablated(scoring, layers, encoder, predict):
        outputs.setdefault(unit, {}).update(zip(batch.rows, texts, strict=True))
    for rank_outputs in parallel.gather(outputs):
        for unit, rows in rank_outputs.items():
            outputs.setdefault(unit, {}).update(rows)
    ordered = {unit: [rows[row] for row in sorted(rows)] for unit, rows in outputs.items()}
    baseline = ordered.pop(None)
    return baseline, {unit: texts for unit, texts in ordered.items() if unit is not None}


def blocks_of(scoring: ScoringJob, layer: Sublayer) -> list[list[int]]:
    kept, size = scoring.mask.kept(layer.name), 1 if layer.is_attention else BLOCK
    return [kept[start : start + size] for start in range(0, len(kept), size)]


def count_runs(scoring: ScoringJob, layers: Sequence[Sublayer]) -> int:
    return len(scoring.batches) * (1 + sum(len(blocks_of(scoring, layer)) for layer in layers))


def ablated(
    scoring: ScoringJob,
    layers: Sequence[Sublayer],
    recorded: Sequence[Sublayer],
    run: Callable[[Batch], Value],
    *,
    alone: bool = False,
) -> Iterator[tuple[Batch, Unit | None, Value]]:
    """Results of `run` for each batch with all units (None), then without each unit of `layers`.

    Layers of `recorded` sublayers return their recorded output while they are below the unit; in
    generation the decoder's may not. With `alone` all other units of the layer are gated instead.
    """
    model, gates = scoring.model, mask_gates(scoring.mask)
    paths = {layer.layer_path for layer in recorded}
    done, total = 0, count_runs(scoring, layers)
    for batch in scoring.batches:
        batch = batch.to(scoring.device)
        with gated(model, scoring.layers, gates), returned(model, paths) as outputs:
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


@torch.no_grad()
def layers_to_drop(
    model: nn.Module,
    sublayers: Sequence[Sublayer],
    batches: Sequence[Batch],
    task: Objective,
    numbers: Mapping[str, int],
    device: str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
    dropped: Collection[str] = (),
) -> dict[str, float]:
    """Which further layers to drop, `numbers` by stack, and the divergence in nats after each."""
    mask, chosen = Mask.full(sublayers).without_layers(dropped), dict[str, float]()
    left = dict(numbers)
    kept = {"encoder.0"} if architecture_of(model).first_layer_stays(model.config) else set()
    terms = parallel.total(sum(task.loss_terms(batch) for batch in batches))
    model.to(device)
    while any(left.values()):
        excluded = mask.dropped | kept
        names = [
            name
            for name in mask.layers()
            if name not in excluded and left.get(name.partition(".")[0], 0)
        ]
        masks = [mask.without_layers([name]) for name in names]
        sums = torch.zeros(len(masks), dtype=torch.float64)
        with evaluating(model):
            for on_host in batches:
                batch = on_host.to(device)
                target = _predictions(model, batch, task)
                for number, candidate in enumerate(masks):
                    with skipped(model, sublayers, candidate):
                        predictions = _predictions(model, batch, task)
                    sums[number] += float(task.divergence(predictions, target))
        parallel.add_up(sums)
        progress(len(chosen) + 1, sum(numbers.values()))
        means = sums / terms
        least = int(means.argmin())
        mask, name = masks[least], names[least]
        left[name.partition(".")[0]] -= 1
        chosen[name] = float(means[least])
    model.to("cpu")
    return chosen


@torch.no_grad()
def divergence(
    model: nn.Module,
    dense: nn.Module,
    batches: Sequence[Batch],
    task: Objective,
    device: str = "cpu",
) -> float:
    """Mean divergence of a model's predictions from the dense one's, in nats per loss term."""
    total = 0.0
    with evaluating(model), evaluating(dense):
        for on_host in batches:
            batch = on_host.to(device)
            target = _predictions(dense, batch, task)
            total += float(task.divergence(_predictions(model, batch, task), target))
    terms = parallel.total(sum(task.loss_terms(batch) for batch in batches))
    return parallel.total(total) / terms


def _predictions(model: nn.Module, batch: Batch, task: Objective) -> Tensor:
    return task.predictions(task.logits(model, batch)[task.term_mask(batch)])
