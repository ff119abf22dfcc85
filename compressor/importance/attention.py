"""Attention probabilities of every head.

They are computed from the outputs of the query and key projections, so the model keeps its own
attention kernel. Where scores are more than products of queries and keys, the model runs with
eager attention, and the probabilities are the outputs of its own softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from compressor import parallel
from compressor.importance import ScoringJob
from compressor.model.architectures import architecture_of
from compressor.model.modes import hooks, returned
from compressor.model.sublayers import Kind, Sublayer
from compressor.model.surgery import gated, mask_gates
from compressor.tasks import Batch

# (layer, probabilities [batch, heads, queries, keys], visible keys of each query [batch or 1, 1,
# queries or 1, keys], batch) -> None
Visit = Callable[[Sublayer, Tensor, Tensor, Batch], None]


@torch.no_grad()
def visit_attention(scoring: ScoringJob, visit: Visit) -> int:
    """Run all batches forward and call `visit` once per layer and batch.

    Returns:
        The number of forward passes, which is that of the batches on all ranks.
    """
    model, total = scoring.model, len(scoring.batches)
    plain = architecture_of(model).plain_scores
    # Where scores are more than products, these may be one projection for all.
    roles = ("query", "key") if plain else ()
    projections = [layer.inputs[role] for layer in scoring.layers for role in roles]

    def hook(layer: Sublayer, recorded: Any, batch: Batch) -> Callable[..., None]:
        def before_output(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            visible = _visible_keys(batch, layer.kind)
            if plain:
                query, key = (recorded.pop(layer.inputs[role]) for role in ("query", "key"))
                probabilities = _probabilities(layer, query, key, visible)
            else:
                probabilities = recorded.last.float()
            visit(layer, probabilities, visible, batch)

        return before_output

    for done, batch in enumerate(scoring.batches, 1):
        batch = batch.to(scoring.device)
        record: AbstractContextManager[Any] = (
            returned(model, projections) if plain else _softmax_outputs(model)
        )
        with (
            gated(model, scoring.layers, mask_gates(scoring.mask)),
            record as recorded,
            hooks(
                model.get_submodule(x.output).register_forward_pre_hook(hook(x, recorded, batch))
                for x in scoring.layers
            ),
        ):
            scoring.task.logits(model, batch)
        scoring.progress(done, total)
    return parallel.total(total)


@contextmanager
def _softmax_outputs(model: Any) -> Iterator[_SoftmaxOutputs]:
    """Record softmax outputs of the model, which uses eager attention within the context."""
    kernel = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with _SoftmaxOutputs() as softmax:
            yield softmax
    finally:
        model.set_attn_implementation(kernel)


class _SoftmaxOutputs(TorchFunctionMode):
    """Keeps the last output of a softmax within the context."""

    last: Tensor

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.nn.functional.softmax:
            self.last = result
        return result


def _probabilities(layer: Sublayer, query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) over the visible keys, [batch, heads, queries, keys]."""
    heads = (layer.units, layer.unit_width)
    q, k = (x.float().unflatten(-1, heads).transpose(1, 2) for x in (query, key))
    scores = q @ k.transpose(-1, -2) * layer.unit_width**-0.5
    return torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)


def _visible_keys(batch: Batch, kind: Kind) -> Tensor:
    """The keys that each query attends to, bool, broadcastable to [batch, heads, queries, keys]."""
    if kind != "decoder_self":
        return batch["attention_mask"].bool()[:, None, None]
    ids = batch["decoder_input_ids"]
    square = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device)
    return square.tril()[None, None]  # padding is on the right of every real query
