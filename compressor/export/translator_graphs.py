"""A translator's graphs: an encoder, which also emits the cross-attention keys and values of all
decoder layers, and a one-step decoder with a key/value cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from torch import Tensor, nn

from compressor.export import graphs
from compressor.export.attention import CrossKeysValues, StepState, additive_mask, by_layer
from compressor.export.graphs import BATCH, PAST, SOURCE
from compressor.export.task_graphs import Network
from compressor.export.vocabulary import OutputLayer, best_tokens, embedding_only
from compressor.model.sublayers import Mask, Sublayer
from compressor.runtime.decoder import ROWS, SELECT_CACHES, SELECT_PAST, selected

_OPSET, _IR_VERSION = 13, 8  # of small graphs; Gather has not changed since opset 13


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
    """One decoding step: logits of the next token, the best one, and the grown cache."""

    def __init__(
        self, model: nn.Module, output: OutputLayer, cross: list[int], decoder_self: list[int]
    ) -> None:
        super().__init__()
        self.decoder = model.get_decoder()  # type: ignore[operator]
        self.output = output
        self.cross, self.decoder_self = cross, decoder_self  # numbers of layers with heads

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


def export_encoder(graph: TranslatorEncoder, path: Path) -> None:
    names = ["input_ids", "attention_mask"]
    # The tracer treats sizes of 0 and 1 as fixed.
    example = (torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long))
    shapes = {name: {0: BATCH, 1: SOURCE} for name in names}
    outputs = ["encoder_hidden_state", *cache_names("cross", graph.cross.used)]
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
    """Keys and values to trace with, [2, heads, length, head_dim], and their dynamic dimensions."""
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


def export_cache_rows(cross: Sequence[str], past: Sequence[str], directory: Path) -> dict[str, str]:
    """Write graphs that select rows of the past alone, and of all caches; none without caches.

    In beam search hypotheses are reordered, and finished sentences leave the batch: a row of the
    batch is a row of every cache. The caches stay on the decoder's device, so a graph selects them.
    """
    files = {}
    for role, names in ((SELECT_PAST, past), (SELECT_CACHES, [*cross, *past])):
        if names:
            files[role] = f"{role}.onnx"
            inputs = dict.fromkeys(names, TensorProto.FLOAT)
            graph = gather_graph(role, inputs, ROWS, selected, axis=0)
            write_small_graph(graph, directory / files[role])
    return files


def gather_graph(
    name: str, caches: Mapping[str, int], indices: str, rename: Callable[[str], str], axis: int
) -> onnx.GraphProto:
    """A graph that gathers entries of caches [batch, heads, length, head_dim] along an axis."""
    inputs = [make_tensor_value_info(x, kind, [None] * 4) for x, kind in caches.items()]
    return make_graph(
        [make_node("Gather", [x, indices], [rename(x)], axis=axis) for x in caches],
        name,
        [make_tensor_value_info(indices, TensorProto.INT64, [None]), *inputs],
        [make_tensor_value_info(rename(x), kind, [None] * 4) for x, kind in caches.items()],
    )


def write_small_graph(graph: onnx.GraphProto, path: Path) -> None:
    # With explicit versions: the defaults are the newest, which older runtimes cannot read.
    opsets = [make_opsetid("", _OPSET)]
    onnx.save(make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION), path)
