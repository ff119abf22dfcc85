"""Runs of a model with units gated to zero one at a time, or all others of their sublayer.

Transformer layers below a head's do not change with it and are not computed again, which saves
about half of the work (of answers that a decoder searches for, all that the encoder has in common:
the decoder sees other tokens each time). Neurons are gated `BLOCK` at a time, in the order in which
they stand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from compressor import parallel
from compressor.importance import ScoringJob
from compressor.model.modes import fixed_outputs, returned
from compressor.model.sublayers import Sublayer
from compressor.model.surgery import gated, mask_gates
from compressor.tasks import Batch

BLOCK = 32  # neurons
Unit = tuple[str, int]  # layer name, unit (of a block of neurons: the first)
Value = TypeVar("Value")


@torch.no_grad()
def losses_alone(scoring: ScoringJob) -> dict[str, list[float]]:
    """The mean loss with each head the only one of its layer, in nats as in `Ablation`.

    Returns:
        Layer name -> a loss for every head; infinite where the mask has removed the head.
    """
    totals, terms = {layer.name: [0.0] * layer.units for layer in scoring.layers}, 0

    def loss(batch: Batch) -> float:
        return float(scoring.task.loss(scoring.model, batch))

    for batch, unit, value in silenced(scoring, scoring.layers, scoring.layers, loss, alone=True):
        if unit is None:
            terms += scoring.task.loss_terms(batch)
        else:
            totals[unit[0]][unit[1]] += value
    return {
        name: [
            total / terms if kept else math.inf
            for total, kept in zip(values, scoring.mask.keep[name], strict=True)
        ]
        for name, values in totals.items()
    }


@torch.no_grad()
def answers_without_units(
    scoring: ScoringJob, layers: Sequence[Sublayer], num_beams: int | None = None
) -> tuple[list[str], dict[Unit, list[str]]]:
    """What the model answers with all units, and without each unit of some layers alone.

    Args:
        scoring: its mask says which units "all" are; only those are looked at.
        layers: the layers whose units are gated to zero, one at a time.
        num_beams: beam width of a translator; None is greedy search.

    Returns:
        Answers in the order of the rows; (layer name, unit) -> answers.
    """
    answers: dict[Unit | None, dict[int, str]] = {}  # unit -> row -> answer
    encoder = [layer for layer in scoring.layers if layer.kind.startswith("encoder")]

    def predict(batch: Batch) -> list[str]:
        return scoring.task.predict(scoring.model, batch, scoring.tokenizer, num_beams)

    for batch, unit, texts in silenced(scoring, layers, encoder, predict):
        answers.setdefault(unit, {}).update(zip(batch.rows, texts, strict=True))
    for others in parallel.gather(answers):
        for key, rows in others.items():
            answers.setdefault(key, {}).update(rows)
    ordered = {unit: [rows[row] for row in sorted(rows)] for unit, rows in answers.items()}
    whole = ordered.pop(None)
    return whole, {unit: texts for unit, texts in ordered.items() if unit is not None}


def blocks_of(scoring: ScoringJob, layer: Sublayer) -> list[list[int]]:
    """Units of a layer that are gated together."""
    kept, size = scoring.mask.kept(layer.name), 1 if layer.is_attention else BLOCK
    return [kept[start : start + size] for start in range(0, len(kept), size)]


def count_runs(scoring: ScoringJob, layers: Sequence[Sublayer]) -> int:
    """How many runs `silenced` makes."""
    return len(scoring.batches) * (1 + sum(len(blocks_of(scoring, layer)) for layer in layers))


def silenced(
    scoring: ScoringJob,
    layers: Sequence[Sublayer],
    recorded: Sequence[Sublayer],
    run: Callable[[Batch], Value],
    *,
    alone: bool = False,
) -> Iterator[tuple[Batch, Unit | None, Value]]:
    """What `run` gives for each batch with all units (None), then without each unit of `layers`.

    Args:
        recorded: attention layers around which the Transformer layers may be skipped when nothing
            below the unit has changed.
        alone: silence all other units of the layer instead.
    """
    model, gates = scoring.model, mask_gates(scoring.mask)
    paths = {layer.layer_path for layer in recorded}
    done, total = 0, count_runs(scoring, layers)
    for batch in scoring.batches:
        batch = batch.to(scoring.device)
        with gated(model, scoring.layers, gates), returned(model, paths) as outputs:
            whole = run(batch)
        yield batch, None, whole
        scoring.progress(done := done + 1, total)
        order = list(outputs)  # as the model runs them
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
