"""Confidence: the mean over tokens of the largest attention weight of a head.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4: the average of a head's maximum
attention weight, excluding the end-of-sentence symbol. Attention probabilities are computed from
the outputs of the query and key projections, so the model keeps its own attention kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from compressor.errors import InputError
from compressor.importance import RawScores, Scoring
from compressor.model.sublayers import Kind, Sublayer
from compressor.model.surgery import gated, mask_gates
from compressor.tasks import Batch

# (layer, probabilities [batch, heads, queries, keys], which keys a query sees [batch or 1, 1,
# queries or 1, keys], batch) -> None
Visit = Callable[[Sublayer, Tensor, Tensor, Batch], None]

_BOUNDARIES = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")


def boundary_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of the tokens that mark where a text begins and ends: [CLS], [SEP], <s>, </s>."""
    found = (getattr(tokenizer, name, None) for name in _BOUNDARIES)
    return frozenset(int(token) for token in found if token is not None)


def score(scoring: Scoring) -> RawScores:
    """Mean over real query tokens of the largest attention weight, between 0 and 1.

    Excluded are the tokenizer's `boundary_ids`, as queries (they are not averaged over) and as keys
    (a weight on one of them is not the largest; the other weights stay as they are). Queries that
    see nothing else do not count either.

    Raises:
        InputError: no token is left to average over.
    """
    sums = {layer.name: torch.zeros(layer.units, dtype=torch.float64) for layer in scoring.layers}
    counts = dict.fromkeys(sums, 0)
    excluded = sorted(boundary_ids(scoring.tokenizer))
    special = torch.tensor(excluded, dtype=torch.long, device=scoring.device)

    def add(layer: Sublayer, probabilities: Tensor, seen: Tensor, batch: Batch) -> None:
        query_ids, key_ids = _token_ids(batch, layer.kind)
        admitted = seen & ~torch.isin(key_ids, special)[:, None, None]  # [batch, 1, queries, keys]
        counted = scoring.task.token_mask(batch, layer.kind) & ~torch.isin(query_ids, special)
        counted = counted & admitted.any(-1).squeeze(1)  # [batch, queries]
        largest = (probabilities * admitted).amax(-1)  # [batch, heads, queries]
        sums[layer.name] += (largest * counted[:, None]).sum((0, 2)).double().cpu()
        counts[layer.name] += int(counted.sum())

    passes = visit_attention(scoring, add)
    for name, count in counts.items():
        if count == 0:
            raise InputError(
                f"the calibration rows hold nothing but special tokens for {name}; give --method "
                "confidence rows with words",
                id="calibration-without-words",
            )
    values = {
        name: (total / counts[name] * torch.tensor(scoring.mask.keep[name])).tolist()
        for name, total in sums.items()
    }
    ids = ",".join(map(str, excluded)) or "none"
    return RawScores(values, f"excluded_ids:{ids}", forward_passes=passes)


@torch.no_grad()
def visit_attention(scoring: Scoring, visit: Visit) -> int:
    """Run all batches forward and call `visit` once per layer and batch.

    Returns:
        The number of batches: that many forward passes were made.
    """
    model, total = scoring.model, len(scoring.batches)
    for done, batch in enumerate(scoring.batches, 1):
        batch = batch.to(scoring.device)
        gates = mask_gates(scoring.mask)
        with gated(model, scoring.layers, gates), _watch(scoring, visit, batch):
            scoring.task.logits(model, batch)
        scoring.progress(done, total)
    return total


@contextmanager
def _watch(scoring: Scoring, visit: Visit, batch: Batch) -> Iterator[None]:
    projected: dict[str, Tensor] = {}  # path of a query or key projection -> its output
    handles = []

    def keep(path: str) -> Callable[..., None]:
        return lambda module, inputs, output: projected.update({path: output})

    def compute(layer: Sublayer) -> Callable[..., None]:
        def attend(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            query, key = projected.pop(layer.inputs["query"]), projected.pop(layer.inputs["key"])
            seen = _seen_keys(batch, layer.kind)
            visit(layer, _probabilities(layer, query, key, seen), seen, batch)

        return attend

    for layer in scoring.layers:
        for path in (layer.inputs["query"], layer.inputs["key"]):
            handles.append(scoring.model.get_submodule(path).register_forward_hook(keep(path)))
        output = scoring.model.get_submodule(layer.output)
        handles.append(output.register_forward_pre_hook(compute(layer)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _probabilities(layer: Sublayer, query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) over the seen keys, [batch, heads, queries, keys]."""
    q, k = (
        x.float().unflatten(-1, (layer.units, layer.unit_width)).transpose(1, 2)
        for x in (query, key)
    )
    scores = q @ k.transpose(-1, -2) * layer.unit_width**-0.5
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)


def _seen_keys(batch: Batch, kind: Kind) -> Tensor:
    """Which keys a query may attend to, bool, broadcastable to [batch, heads, queries, keys]."""
    if kind != "decoder_self":
        return batch["attention_mask"].bool()[:, None, None]
    ids = batch["decoder_input_ids"]
    square = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device)
    return square.tril()[None, None]  # padding is on the right, where no real query looks


def _token_ids(batch: Batch, kind: Kind) -> tuple[Tensor, Tensor]:
    """Token ids of the queries and of the keys, [batch, queries] and [batch, keys]."""
    queries = "input_ids" if kind == "encoder_self" else "decoder_input_ids"
    keys = "decoder_input_ids" if kind == "decoder_self" else "input_ids"
    return batch[queries], batch[keys]
