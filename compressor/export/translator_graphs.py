"""A translator's graphs: an encoder, which also emits the cross-attention keys and values of all
decoder layers, and a one-step decoder with a key/value cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compressor.export import graphs
from compressor.export.attention import CrossKeysValues, StepState, additive_mask, by_layer
from compressor.export.graphs import BATCH, PAST, SOURCE
from compressor.export.task_graphs import Network
from compressor.export.vocabulary import OutputLayer, best_tokens, embedding_only
from compressor.model.sublayers import Mask, Sublayer


class TranslatorEncoder(nn.Module):
    def __init__(self, model: nn.Module, layers: Sequence[Sublayer], mask: Mask) -> None:
        super().__init__()
        self.encoder = model.get_encoder()  # type: ignore[operator]
        self.cross = CrossKeysValues(model, layers, mask)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
        mask = additive_mask(attention_mask)
        hidden = self.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state
        return [hidden, *self.cross(hidden)]


class DecoderStep(nn.Module):
    """One decoding step: logits of the next token, the best one, and the grown cache.

    Args:
        cross, decoder_self: indices of the layers with heads in their attention.
    """

    def __init__(
        self, model: nn.Module, output: OutputLayer, cross: list[int], decoder_self: list[int]
    ) -> None:
        super().__init__()
        self.decoder = model.get_decoder()  # type: ignore[operator]
        self.output, self.cross, self.decoder_self = output, cross, decoder_self

    def forward(
        self,
        input_ids: Tensor,
        position: Tensor,
        attention_mask: Tensor | None,
        cross: list[Tensor],
        past: list[Tensor],
    ) -> list[Tensor]:
        state = StepState(position, by_layer(self.cross, cross), by_layer(self.decoder_self, past))
        # A mask of four dimensions replaces transformers' own; the one token attends to all others.
        unmasked = torch.zeros(1, 1, 1, 1)
        source_mask = unmasked if attention_mask is None else additive_mask(attention_mask)
        width = self.output.weight.shape[1]
        hidden = state.decode(self.decoder, input_ids, unmasked, source_mask, width)
        logits = self.output(hidden[:, -1])  # [batch, 1, width] -> [batch, tokens]
        # The best token is an output too, so that greedy search reads one number per row, and the
        # logits stay on the GPU.
        present = [x for i in self.decoder_self for x in state.present[i]]
        return [logits, best_tokens(logits), *present]


def export_encoder(
    graph: TranslatorEncoder, path: Path, hidden: str = "encoder_hidden_state"
) -> None:
    """Write the encoder, whose output `hidden` has its hidden states."""
    names = ["input_ids", "attention_mask"]
    # The tracer treats sizes of 0 and 1 as fixed.
    example = (torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long))
    shapes = {name: {0: BATCH, 1: SOURCE} for name in names}
    outputs = [hidden, *cache_names("cross", graph.cross.used)]
    graphs.export_graph(graph, example, names, outputs, shapes, path)


def export_decoder(network: Network, path: Path) -> None:
    """Write one decoding step."""
    mask = network.mask
    cross, decoder_self = (with_heads(network, kind) for kind in ("cross", "decoder_self"))
    memory, memory_dims = example_caches(cross, mask, 5, SOURCE)
    past, past_dims = example_caches(decoder_self, mask, 3, PAST)
    # Without cross-attention nothing reads it, so it is not an input of the graph.
    source_mask = torch.ones(2, 5, dtype=torch.long) if cross else None
    # The position is the length of the past above.
    example = (torch.ones(2, 1, dtype=torch.long), torch.tensor([3]), source_mask, memory, past)
    shapes = {
        "input_ids": {0: BATCH},
        "position": None,
        "attention_mask": {0: BATCH, 1: SOURCE} if cross else None,
        "cross": memory_dims,
        "past": past_dims,
    }
    names = ["input_ids", "position", *(["attention_mask"] if cross else [])]
    names += cache_names("cross", cross) + cache_names("past", decoder_self)
    outputs = ["logits", "best", *cache_names("present", decoder_self)]
    output = OutputLayer(network.model, network.tokens)
    with embedding_only(network.model, output, network.tokens):
        indices = ([x.index for x in layers] for layers in (cross, decoder_self))
        graph = DecoderStep(network.model, output, *indices)
        graphs.export_graph(graph, example, names, outputs, shapes, path)


def example_caches(
    sublayers: Sequence[Sublayer], mask: Mask, length: int, dim: Any
) -> tuple[list[Tensor], list[dict[int, Any]]]:
    """Keys and values to trace with, [2, heads, length, head_dim], and their dynamic dimensions.

    Args:
        dim: name of the length.
    """
    tensors = [
        torch.randn(2, len(mask.kept(x.name)), length, x.unit_width)
        for x in sublayers
        for _ in ("key", "value")
    ]
    return tensors, [{0: BATCH, 2: dim} for _ in tensors]


def with_heads(network: Network, kind: str) -> list[Sublayer]:
    """The attentions of a kind that have heads left."""
    return [x for x in network.checkpoint.layers if x.kind == kind and network.mask.kept(x.name)]


def cache_names(prefix: str, sublayers: Iterable[Sublayer]) -> list[str]:
    """Names of the keys and values of attentions, as inputs and outputs of graphs."""
    return [f"{prefix}_{part}.{x.index}" for x in sublayers for part in ("key", "value")]
