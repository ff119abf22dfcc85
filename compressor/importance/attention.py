"""Attention probabilities of every head, computed beside the forward pass.

They are computed from the outputs of the query and key projections, so the model keeps its own
attention kernel. Where scores are more than products of queries and keys, the model computes its
attention step by step, and the probabilities are what its own softmax returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from compressor import parallel
from compressor.importance import ScoringJob
from compressor.model.architectures import architecture_of
from compressor.model.modes import hooks, returned
from compressor.model.sublayers import Kind, Sublayer
from compressor.model.surgery import gated, mask_gates
from compressor.tasks import Batch

# (layer, probabilities [batch, heads, queries, keys], which keys a query sees [batch or 1, 1,
# queries or 1, keys], batch) -> None
Visit = Callable[[Sublayer, Tensor, Tensor, Batch], None]


@torch.no_grad()
def visit_attention(scoring: ScoringJob, visit: Visit) -> int:
    """Run all batches forward and call `visit` once per layer and batch.

    Returns:
        The number of batches on all ranks: that many forward passes were made.
    """
    model, total = scoring.model, len(scoring.batches)
    watch: Callable[[], AbstractContextManager[Any]] = partial(_softmax_outputs, model)
    take: Callable[..., None] = _take
    if architecture_of(model).plain_scores:
        paths = [layer.inputs[role] for layer in scoring.layers for role in ("query", "key")]
        watch, take = partial(returned, model, paths), _attend
    for done, batch in enumerate(scoring.batches, 1):
        batch = batch.to(scoring.device)
        with (
            gated(model, scoring.layers, mask_gates(scoring.mask)),
            watch() as seen,
            hooks(
                model.get_submodule(x.output).register_forward_pre_hook(
                    partial(take, x, seen, batch, visit)
                )
                for x in scoring.layers
            ),
        ):
            scoring.task.logits(model, batch)
        scoring.progress(done, total)
    return parallel.total(total)


@contextmanager
def _softmax_outputs(model: Any) -> Iterator[_SoftmaxOutputs]:
    """Have the model compute its attention step by step while the context lasts."""
    kernel = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with _SoftmaxOutputs() as softmax:
            yield softmax
    finally:
        model.set_attn_implementation(kernel)


class _SoftmaxOutputs(TorchFunctionMode):
    """Keeps the last output of a softmax while the context lasts."""

    last: Tensor

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.nn.functional.softmax:
            self.last = result
        return result


def _take(layer: Sublayer, softmax: _SoftmaxOutputs, batch: Batch, visit: Visit, *_: Any) -> None:
    visit(layer, softmax.last.float(), _seen_keys(batch, layer.kind), batch)


def _attend(
    layer: Sublayer, projected: dict[str, Tensor], batch: Batch, visit: Visit, *_: Any
) -> None:
    query, key = projected.pop(layer.inputs["query"]), projected.pop(layer.inputs["key"])
    seen = _seen_keys(batch, layer.kind)
    visit(layer, _probabilities(layer, query, key, seen), seen, batch)


def _probabilities(layer: Sublayer, query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) over the seen keys, [batch, heads, queries, keys]."""
    heads = (layer.units, layer.unit_width)
    q, k = (x.float().unflatten(-1, heads).transpose(1, 2) for x in (query, key))
    scores = q @ k.transpose(-1, -2) * layer.unit_width**-0.5
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)


def _seen_keys(batch: Batch, kind: Kind) -> Tensor:
    """Which keys a query may attend to, bool, broadcastable to [batch, heads, queries, keys]."""
    if kind != "decoder_self":
        return batch["attention_mask"].bool()[:, None, None]
    ids = batch["decoder_input_ids"]
    square = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device)
    return square.tril()[None, None]  # padding is on the right, where no real query looks
