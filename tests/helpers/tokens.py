"""Encoders that hand on fewer tokens, and what they compute, row by row and by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from compressor.model.one_token import read_one_token
from compressor.model.sublayers import TOKEN_KIND, TOKEN_UNITS, Mask, Sublayer
from compressor.tasks import Batch
from tests.helpers.tiny import tiny_model


def one_token_model(name: str = "bert", seed: int = 0) -> nn.Module:
    """A tiny classifier as checkpoints are opened: its last layer computes one token."""
    model = tiny_model(name, seed)
    if name == "modernbert":
        model.config.classifier_pooling = "cls"
    read_one_token(model)
    return model


def with_tenths(mask: Mask, tenths: Sequence[int]) -> Mask:
    """A mask in which the layers hand on so many tenths of a row's tokens."""
    return mask.with_tokens().without(
        (f"{TOKEN_KIND}.{layer}", unit)
        for layer, left in enumerate(tenths)
        for unit in range(left, TOKEN_UNITS)
    )


def handing_on_tenths(*tenths: int):
    """A mask, from the sublayers, that keeps all heads and neurons but hands on fewer tokens."""
    return lambda layers: with_tenths(Mask.full(layers), tenths)


def heads_and_tenths(*tenths: int):
    """The same without a head of each layer, and without every third neuron."""

    def mask(layers: Sequence[Sublayer]) -> Mask:
        units = [(x.name, x.index) for x in layers if x.is_attention]
        units += [(x.name, n) for x in layers if not x.is_attention for n in range(0, x.units, 3)]
        return with_tenths(Mask.full(layers).without(units), tenths)

    return mask


@torch.no_grad()
def bert_by_hand(
    model: nn.Module, ids: Tensor, tenths: Sequence[int]
) -> tuple[Tensor, list[tuple[list[int], Tensor]]]:
    """A BERT classifier's logits for one row without padding, from its matrices alone.

    Args:
        model: its heads may be pruned.
        ids: [tokens].
        tenths: of the tokens that each layer but the last hands on.

    Returns:
        Logits [classes], and after each layer the places of the tokens that are left, with their
        states [kept, width].
    """
    states = model.bert.embeddings(ids[None])[0]
    places, width, after_layers = list(range(len(ids))), 8, []
    for layer, share in zip(model.bert.encoder.layer, [*tenths, TOKEN_UNITS], strict=True):
        block = layer.attention.self
        query, key, value = (
            nn.functional.linear(states, part.weight, part.bias).unflatten(-1, (-1, width))
            for part in (block.query, block.key, block.value)
        )
        scores = torch.einsum("qhd,khd->hqk", query, key) / width**0.5
        weights = scores.softmax(-1)  # [heads, queries, keys]
        mixed = torch.einsum("hqk,khd->qhd", weights, value).flatten(1)
        count = max(1, -(-share * len(ids) // TOKEN_UNITS))
        kept = list(range(len(places)))
        if count < len(places):
            received = weights.sum((0, 1)).tolist()
            others = sorted(range(1, len(places)), key=lambda slot: -received[slot])
            kept = [0, *others[: count - 1]]
        places = [places[slot] for slot in kept]
        norm, dense = layer.attention.output.LayerNorm, layer.attention.output.dense
        attended = norm(nn.functional.linear(mixed[kept], dense.weight, dense.bias) + states[kept])
        states = layer.output(layer.intermediate(attended), attended)
        after_layers.append((places, states))
    pooled = torch.tanh(model.bert.pooler.dense(states[0]))
    return model.classifier(pooled), after_layers


def rows_in(batches: Sequence[Batch]) -> list[tuple[Tensor, int]]:
    """Token ids and label of each row, without padding."""
    rows = []
    for batch in batches:
        for ids, mask, label in zip(
            batch["input_ids"], batch["attention_mask"].bool(), batch["labels"], strict=True
        ):
            rows.append((ids[mask], int(label)))
    return rows
