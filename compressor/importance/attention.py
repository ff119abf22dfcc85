"""Attention probabilities of every head, and scores by them.

They are computed from the outputs of the query and key projections, so the model keeps its own
attention kernel. Where scores are more than products of queries and keys (relative positions), the
model runs its eager attention, and the probabilities are the outputs of its softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from compressor import parallel
from compressor.importance import Confidence, RawScores, ScoringJob
from compressor.model.architectures import architecture_of
from compressor.model.modes import computing_all_tokens, hooks, record_outputs
from compressor.model.sublayers import Sublayer
from compressor.model.surgery import gated, mask_gates
from compressor.tasks import Batch

# Tokens that mark where a text begins and ends: [CLS], [SEP], <s>, </s>.
_BOUNDARIES = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
# (layer, probabilities [batch, heads, queries, keys], visible keys of each query [batch or 1, 1,
# queries or 1, keys], batch) -> None
Visit = Callable[[Sublayer, Tensor, Tensor, Batch], None]


@torch.no_grad()
def visit_attention(scoring: ScoringJob, visit: Visit) -> int:
    """Run all batches forward and call `visit` once per attention sublayer and batch.

    Args:
        scoring: the model and the batches; its layers are attention.
        visit: called with the sublayer, its probabilities [batch, heads, queries, keys] in float32,
            the keys that each query attends to (bool, broadcastable to the same shape), and the
            batch on the device.

    Returns:
        The number of batches on all ranks: that many forward passes were made.
    """
    model, total = scoring.model, len(scoring.batches)
    plain = architecture_of(model).plain_scores
    # Where scores are more than products, these may be one projection for all.
    roles = ("query", "key") if plain else ()
    projections = [layer.inputs[role] for layer in scoring.layers for role in roles]

    def before_output(
        layer: Sublayer, recorded: Any, batch: Batch, module: nn.Module, inputs: tuple[Tensor, ...]
    ) -> None:
        # The keys that each query attends to, broadcastable to [batch, heads, queries, keys].
        if layer.kind == "decoder_self":
            ids = batch["decoder_input_ids"]
            square = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device)
            visible = square.tril()[None, None]  # padding is on the right of every real query
        else:
            visible = batch["attention_mask"].bool()[:, None, None]
        if plain:  # softmax(q k^T / sqrt(head_dim)) over the visible keys
            heads = (layer.units, layer.unit_width)
            q, k = (
                recorded.pop(layer.inputs[role]).float().unflatten(-1, heads).transpose(1, 2)
                for role in roles
            )
            scores = q @ k.transpose(-1, -2) * layer.unit_width**-0.5
            probabilities = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        else:
            probabilities = recorded.last.float()
        visit(layer, probabilities, visible, batch)

    for done, batch in enumerate(scoring.batches, 1):
        batch = batch.to(scoring.device)
        record: AbstractContextManager[Any] = (
            record_outputs(model, projections) if plain else _softmax_outputs(model)
        )
        with (
            gated(model, scoring.layers, mask_gates(scoring.mask)),
            computing_all_tokens(model),
            record as recorded,
            hooks(
                model.get_submodule(layer.output).register_forward_pre_hook(
                    partial(before_output, layer, recorded, batch)
                )
                for layer in scoring.layers
            ),
        ):
            scoring.task.logits(model, batch)
        scoring.progress(done, total)
    return parallel.total(total)


@contextmanager
def _softmax_outputs(model: Any) -> Iterator[_SoftmaxOutputs]:
    """Within the context, attention is computed in eager mode and its softmax is recorded."""
    # Each stack of T5 has a configuration of its own, which transformers 5.17 does not change.
    parts = [x for x in model.modules() if isinstance(x, PreTrainedModel)]
    kernels = [part.config._attn_implementation for part in parts]
    try:
        for part in parts:
            part.set_attn_implementation("eager")
        with _SoftmaxOutputs() as softmax:
            yield softmax
    finally:
        for part, kernel in zip(parts, kernels, strict=True):
            part.set_attn_implementation(kernel)


class _SoftmaxOutputs(TorchFunctionMode):
    """Keeps the latest output of a softmax while the context lasts."""

    last: Tensor

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.nn.functional.softmax:
            self.last = result
        return result


def confidence_scores(method: Confidence, scoring: ScoringJob) -> RawScores:
    """Mean over real query tokens of a head's largest attention weight.

    Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4. Boundary tokens are
    excluded as queries and as keys (without renormalizing weights), and so are queries that attend
    to them alone.

    Returns:
        Numbers between 0 and 1; NaN without a query that counts.
    """
    sums = {x.name: torch.zeros(x.units, dtype=torch.float64) for x in scoring.layers}
    counts = dict.fromkeys(sums, 0)
    ids = (getattr(scoring.tokenizer, name, None) for name in _BOUNDARIES)
    excluded = sorted({int(token) for token in ids if token is not None})
    special = torch.tensor(excluded, dtype=torch.long, device=scoring.device)

    def add(layer: Sublayer, probabilities: Tensor, visible: Tensor, batch: Batch) -> None:
        is_word = ~torch.isin(batch[layer.key_ids], special)  # [batch, keys]
        included = visible & is_word[:, None, None]  # as `visible`
        counted = scoring.task.token_mask(batch, layer.kind)  # [batch, queries]
        counted = counted & ~torch.isin(batch[layer.query_ids], special)
        counted = counted & included.any(-1).squeeze(1)
        largest = (probabilities * included).amax(-1)  # [batch, heads, queries]
        sums[layer.name] += (largest * counted[:, None]).sum((0, 2)).double().cpu()
        counts[layer.name] += int(counted.sum())

    passes = visit_attention(scoring, add)
    parallel.add_up(*sums.values())
    values = {}
    for name, total in sums.items():
        # NaN without words, which `score_units` refuses.
        mean = total / parallel.total(counts[name])
        values[name] = (mean * torch.tensor(scoring.mask.keep[name])).tolist()
    names = ",".join(map(str, excluded)) or "none"
    return RawScores(values, f"excluded_ids:{names}", forward_passes=passes)
