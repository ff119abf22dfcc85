"""Ablation, the oracle: how much worse is the loss without this one head?

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2, with the
loss in the place of the metric: it is smooth, and it needs no decoding. It takes one forward pass
per head and batch, and one more with all heads; Transformer layers below the head's do not change
with it and are not computed again, which saves about half of the work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from compressor.heads import AttentionLayer
from compressor.importance import RawScores, Scoring
from compressor.surgery import gated, mask_gates
from compressor.tasks import Batch


@torch.no_grad()
def score(scoring: Scoring) -> RawScores:
    """Loss with the head gated to zero minus loss with all heads, in nats.

    Per real target token for translation, per row for classification. Negative where the model is
    better off without the head. "All" are those that the mask has left. Comparable as they are.
    """
    increases = {layer.name: torch.zeros(layer.heads) for layer in scoring.layers}
    total = len(scoring.batches) * (1 + scoring.mask.count())
    terms = done = 0

    def finish() -> None:
        nonlocal done
        done += 1
        scoring.progress(done, total)

    for batch in scoring.batches:
        _add_batch(scoring, batch.to(scoring.device), increases, finish)
        terms += scoring.task.loss_terms(batch)
    values = {name: (increase / terms).tolist() for name, increase in increases.items()}
    return RawScores(values, "loss_increase:mean", forward_passes=total, comparable=True)


def _add_batch(
    scoring: Scoring, batch: Batch, increases: dict[str, Tensor], finish: Callable[[], None]
) -> None:
    model, layers, gates = scoring.model, scoring.layers, mask_gates(scoring.mask)
    blocks = {layer.name: _transformer_layer(layer) for layer in layers}
    with gated(model, layers, gates), _recording(model, set(blocks.values())) as outputs:
        whole = scoring.task.loss(model, batch)
    finish()
    order = list(outputs)  # as the model runs them
    for layer in layers:
        below = order[: order.index(blocks[layer.name])]
        for head in scoring.mask.kept(layer.name):
            gate = torch.tensor(scoring.mask.keep[layer.name], dtype=torch.float32)
            gate[head] = 0
            without = gates | {layer.name: gate}
            with (
                gated(model, layers, without),
                _replaying(model, {path: outputs[path] for path in below}),
            ):
                loss = scoring.task.loss(model, batch)
            increases[layer.name][head] += (loss - whole).cpu()
            finish()


def _transformer_layer(layer: AttentionLayer) -> str:
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


@contextmanager
def _replaying(model: nn.Module, outputs: Mapping[str, Any]) -> Iterator[None]:
    """Modules that answer with the given outputs instead of computing, while the context lasts."""
    changed: list[tuple[nn.Module, Any]] = []
    try:
        for path, output in outputs.items():
            module = model.get_submodule(path)
            changed.append((module, vars(module).get("forward")))
            module.forward = lambda *args, output=output, **kwargs: output
        yield
    finally:
        for module, own in changed:
            del module.forward
            if own is not None:  # libraries that move weights about keep a forward of their own
                module.forward = own
