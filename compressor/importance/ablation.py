"""Ablation, the oracle: how much worse is the model without this one head?

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2. By default
worse in the loss, which is smooth and needs no decoding; with `ablate="metric"` in the paper's own
terms, BLEU of greedy translations or accuracy. It takes one pass per head and batch, and one more
with all heads; Transformer layers below the head's do not change with it and are not computed
again, which saves about half of the work (with the metric, all that the encoder has in common: a
decoder that searches sees other tokens each time).

Neurons are ablated `BLOCK` at a time, in the order in which they stand; each gets its part of what
the block does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from compressor.errors import UsageError
from compressor.importance import Ablate, RawScores, Scoring
from compressor.model.modes import fixed_outputs
from compressor.model.sublayers import Sublayer
from compressor.model.surgery import gated, mask_gates
from compressor.tasks import Batch

BLOCK = 32  # neurons
Head = tuple[str, int]  # layer name, head (of a block of neurons: the first)
Value = TypeVar("Value")


@torch.no_grad()
def score(scoring: Scoring, ablate: Ablate = "loss") -> RawScores:
    """How much the loss grows, or the metric falls, when a head is gated to zero.

    The loss in nats per real target token for translation, per row for classification; the metric
    in points from 0 to 100. Negative where the model is better off without the head. "All heads"
    are those that the mask has left. Comparable as they are.

    Raises:
        UsageError: the metric is wanted, but the right answers are not known.
    """
    return (_by_metric if ablate == "metric" else _by_loss)(scoring)


def _by_loss(scoring: Scoring) -> RawScores:
    increases = {layer.name: torch.zeros(layer.units) for layer in scoring.layers}
    terms, whole = 0, torch.tensor(0.0)
    finish = _counter(scoring, scoring.layers)
    for batch in scoring.batches:
        batch = batch.to(scoring.device)

        def loss(batch: Batch = batch) -> Tensor:
            return scoring.task.loss(scoring.model, batch)

        for head, value in _without_heads(scoring, scoring.layers, scoring.layers, loss):
            if head is None:
                whole = value
            else:
                increases[head[0]][head[1]] += (value - whole).cpu()
            finish()
        terms += scoring.task.loss_terms(batch)
    values = {name: (increase / terms).tolist() for name, increase in increases.items()}
    _share_in_blocks(scoring, values)
    return RawScores(values, "loss_increase:mean", forward_passes=_passes(scoring))


@torch.no_grad()
def losses_alone(scoring: Scoring) -> dict[str, list[float]]:
    """The mean loss with each head the only one of its layer, in nats as in `score`.

    Returns:
        Layer name -> a loss for every head; infinite where the mask has removed the head.
    """
    totals = {layer.name: [0.0] * layer.units for layer in scoring.layers}
    finish, terms = _counter(scoring, scoring.layers), 0
    for batch in scoring.batches:
        batch = batch.to(scoring.device)

        def loss(batch: Batch = batch) -> float:
            return float(scoring.task.loss(scoring.model, batch))

        found = _without_heads(scoring, scoring.layers, scoring.layers, loss, alone=True)
        for head, value in found:
            if head is not None:
                totals[head[0]][head[1]] += value
            finish()
        terms += scoring.task.loss_terms(batch)
    return {
        name: [
            total / terms if kept else math.inf
            for total, kept in zip(values, scoring.mask.keep[name], strict=True)
        ]
        for name, values in totals.items()
    }


def _by_metric(scoring: Scoring) -> RawScores:
    if scoring.metric is None:
        raise UsageError(
            "--ablate metric needs rows with their right answers; give --calibration",
            id="references-missing",
        )
    whole, silenced = answers_without_heads(scoring, scoring.layers)
    dense, signature = scoring.metric(whole)
    values = {layer.name: [0.0] * layer.units for layer in scoring.layers}
    for (name, head), answers in silenced.items():
        values[name][head] = dense - scoring.metric(answers)[0]
    _share_in_blocks(scoring, values)
    return RawScores(values, f"decrease:{signature}", forward_passes=_passes(scoring))


@torch.no_grad()
def answers_without_heads(
    scoring: Scoring, layers: Sequence[Sublayer], num_beams: int | None = None
) -> tuple[list[str], dict[Head, list[str]]]:
    """What the model answers with all heads, and without each head of some layers alone.

    Args:
        scoring: its mask says which heads "all" are; only those are looked at.
        layers: the layers whose heads are gated to zero, one at a time.
        num_beams: beam width of a translator; None is greedy search.

    Returns:
        Answers in the order of the rows; (layer name, head) -> answers.
    """
    answers: dict[Head | None, dict[int, str]] = {}  # head -> row -> answer
    finish = _counter(scoring, layers)
    encoder = [layer for layer in scoring.layers if layer.kind.startswith("encoder")]
    for batch in scoring.batches:
        moved = batch.to(scoring.device)

        def predict(batch: Batch = moved) -> list[str]:
            return scoring.task.predict(scoring.model, batch, scoring.tokenizer, num_beams)

        for head, texts in _without_heads(scoring, layers, encoder, predict):
            answers.setdefault(head, {}).update(zip(batch.rows, texts, strict=True))
            finish()
    whole = _in_order(answers.pop(None))
    return whole, {head: _in_order(rows) for head, rows in answers.items() if head is not None}


def _in_order(rows: Mapping[int, str]) -> list[str]:
    return [rows[row] for row in sorted(rows)]


def _blocks(scoring: Scoring, layer: Sublayer) -> list[list[int]]:
    """Units of a layer that are ablated together."""
    kept, size = scoring.mask.kept(layer.name), 1 if layer.is_attention else BLOCK
    return [kept[start : start + size] for start in range(0, len(kept), size)]


def _share_in_blocks(scoring: Scoring, values: dict[str, list[float]]) -> None:
    """Give each unit its part of what the first one of its block has."""
    for layer in scoring.layers:
        for block in _blocks(scoring, layer):
            share = values[layer.name][block[0]] / len(block)
            for unit in block:
                values[layer.name][unit] = share


def _passes(scoring: Scoring) -> int:
    blocks = sum(len(_blocks(scoring, layer)) for layer in scoring.layers)
    return len(scoring.batches) * (1 + blocks)


def _counter(scoring: Scoring, layers: Sequence[Sublayer]) -> Callable[[], None]:
    """A function to call after each pass, which reports progress."""
    blocks = sum(len(_blocks(scoring, layer)) for layer in layers)
    total, done = len(scoring.batches) * (1 + blocks), 0

    def finish() -> None:
        nonlocal done
        done += 1
        scoring.progress(done, total)

    return finish


def _without_heads(
    scoring: Scoring,
    layers: Sequence[Sublayer],
    recorded: Sequence[Sublayer],
    run: Callable[[], Value],
    *,
    alone: bool = False,
) -> Iterator[tuple[Head | None, Value]]:
    """What `run` gives with all heads (None), then without each head of `layers`.

    Args:
        recorded: attention layers around which the Transformer layers may be skipped when nothing
            below the head has changed.
        alone: silence all other heads of the layer instead.
    """
    model, gates = scoring.model, mask_gates(scoring.mask)
    paths = {_transformer_layer(layer) for layer in recorded}
    with gated(model, scoring.layers, gates), _recording(model, paths) as outputs:
        whole = run()
    yield None, whole
    order = list(outputs)  # as the model runs them
    for layer in layers:
        path = _transformer_layer(layer)
        below = order[: order.index(path)] if path in order else order
        for block in _blocks(scoring, layer):
            gate = torch.tensor(scoring.mask.keep[layer.name], dtype=torch.float32)
            if alone:
                gate.zero_()
            gate[block] = float(alone)
            with (
                gated(model, scoring.layers, gates | {layer.name: gate}),
                fixed_outputs(model, {path: outputs[path] for path in below}),
            ):
                result = run()
            yield (layer.name, block[0]), result


def _transformer_layer(layer: Sublayer) -> str:
    """Path of the Transformer layer around an attention block, up to the layer number."""
    match = re.match(r".*?\.\d+(?=\.)", layer.block)
    assert match is not None, layer.block
    return match.group()


@contextmanager
def _recording(model: nn.Module, paths: set[str]) -> Iterator[dict[str, Any]]:
    """What each module returns, by path, in the order in which they run."""
    outputs: dict[str, Any] = {}
    handles = [
        model.get_submodule(path).register_forward_hook(
            lambda module, inputs, output, path=path: outputs.update({path: output})
        )
        for path in paths
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
