"""Attention probabilities of every head, computed beside the forward pass.

They are computed from the outputs of the query and key projections, so the model keeps its own
attention kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from compressor.importance import ScoringJob
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
        The number of batches: that many forward passes were made.
    """
    model, total = scoring.model, len(scoring.batches)
    paths = [layer.inputs[role] for layer in scoring.layers for role in ("query", "key")]
    for done, batch in enumerate(scoring.batches, 1):
        batch = batch.to(scoring.device)
        with (
            gated(model, scoring.layers, mask_gates(scoring.mask)),
            returned(model, paths) as projected,
            hooks(
                model.get_submodule(x.output).register_forward_pre_hook(
                    partial(_attend, model, x, projected, batch, visit)
                )
                for x in scoring.layers
            ),
        ):
            scoring.task.logits(model, batch)
        scoring.progress(done, total)
    return total


def _attend(
    model: nn.Module,
    layer: Sublayer,
    projected: dict[str, Tensor],
    batch: Batch,
    visit: Visit,
    *_: Any,
) -> None:
    query, key = projected.pop(layer.inputs["query"]), projected.pop(layer.inputs["key"])
    seen = _seen_keys(batch, layer.kind)
    attention = None if layer.biased_by is None else model.get_submodule(layer.biased_by)
    bias = None if attention is None else attention.compute_bias(query.shape[1], key.shape[1])  # type: ignore[operator]
    visit(layer, _probabilities(layer, query, key, seen, bias), seen, batch)


def _probabilities(
    layer: Sublayer, query: Tensor, key: Tensor, seen: Tensor, bias: Tensor | None
) -> Tensor:
    """softmax(q k^T x scale + bias) over the seen keys, [batch, heads, queries, keys]."""
    q, k = (
        x.float().unflatten(-1, (layer.units, layer.unit_width)).transpose(1, 2)
        for x in (query, key)
    )
    scores = q @ k.transpose(-1, -2) * layer.scale
    scores = scores if bias is None else scores + bias
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)


def _seen_keys(batch: Batch, kind: Kind) -> Tensor:
    """Which keys a query may attend to, bool, broadcastable to [batch, heads, queries, keys]."""
    if kind != "decoder_self":
        return batch["attention_mask"].bool()[:, None, None]
    ids = batch["decoder_input_ids"]
    square = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device)
    return square.tril()[None, None]  # padding is on the right, where no real query looks
