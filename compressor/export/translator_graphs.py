"""A translator's graphs: the encoder, and one step of the decoder with a cache.

The encoder also gives the keys and values of all cross-attentions.
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
from compressor.export.attention_base import additive_mask
from compressor.export.decoder_attention import CrossKeysValues, KeysValues, StepState
from compressor.export.graphs import BATCH, PAST, SOURCE
from compressor.export.task_graphs import Network
from compressor.export.vocabulary import OutputLayer, best_tokens, embedding_only
from compressor.model.sublayers import Mask, Sublayer
from compressor.runtime.graph_names import (
    COUNT,
    RANK,
    ROWS,
    SELECT_CACHES,
    SELECT_PAST,
    TOP_TOKENS,
    TOP_VALUES,
    selected,
)

_OPSET, _IR_VERSION = 13, 8  # of small graphs; Gather has not changed since opset 13


class TranslatorEncoder(nn.Module):
    """The encoder, with the keys and values of the decoder's cross-attentions.

    Args:
        model: an encoder-decoder.
        layers: all its sublayers.
        mask: says which of them have heads left.
    """

    def __init__(self, model: nn.Module, layers: Sequence[Sublayer], mask: Mask) -> None:
        super().__init__()
        self.encoder = model.get_encoder()  # type: ignore[operator]
        self.cross = CrossKeysValues(model, layers, mask)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
        """Encode sources.

        Args:
            input_ids: [batch, source].
            attention_mask: [batch, source] of 1 and 0.

        Returns:
            Hidden states [batch, source, width], then key, value, key, value, …, [batch, heads,
            source, head_dim] each.
        """
        mask = additive_mask(attention_mask)
        hidden = self.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state
        return [hidden, *self.cross(hidden)]


class DecoderStep(nn.Module):
    """One decoding step: logits of the next token, the best one, and the grown cache.

    Args:
        model: an encoder-decoder, with its attention replaced.
        output: the output layer.
        cross: numbers of the layers whose cross-attention has heads.
        past: numbers of the layers whose self-attention has heads.
    """

    def __init__(
        self, model: nn.Module, output: OutputLayer, cross: list[int], past: list[int]
    ) -> None:
        super().__init__()
        self.decoder = model.get_decoder()  # type: ignore[operator]
        self.output = output
        self.cross, self.past = cross, past  # numbers of the layers with heads

    def forward(
        self,
        input_ids: Tensor,
        position: Tensor,
        attention_mask: Tensor | None,
        cross: list[Tensor],
        past: list[Tensor],
    ) -> list[Tensor]:
        """Decode one token of each row.

        Args:
            input_ids: [batch, 1].
            position: number of tokens so far, [1].
            attention_mask: of the sources, [batch, source]; None without cross-attention heads.
            cross: key, value, key, value, …, [batch, heads, source, head_dim] each.
            past: key, value, key, value, …, [batch, heads, past, head_dim] each.

        Returns:
            Logits [batch, tokens], the best token [batch], and the grown past.
        """
        state = StepState(position, _by_layer(self.cross, cross), _by_layer(self.past, past))
        # A mask of four dimensions replaces transformers' own; the one token attends to all others.
        unmasked = torch.zeros(1, 1, 1, 1)
        source_mask = unmasked if attention_mask is None else additive_mask(attention_mask)
        hidden = self.decoder(
            input_ids=input_ids,
            attention_mask=unmasked,
            encoder_attention_mask=source_mask,
            # Required, but not read: keys and values come from the state.
            encoder_hidden_states=torch.zeros(1, 1, self.output.weight.shape[1]),
            past_key_values=state,
            use_cache=True,
        ).last_hidden_state
        logits = self.output(hidden[:, -1])  # [batch, 1, width] -> [batch, tokens]
        # The best token is an output too, so that the logits stay on the GPU in greedy search.
        return [logits, best_tokens(logits), *(x for i in self.past for x in state.present[i])]


def _by_layer(layers: Sequence[int], tensors: Sequence[Tensor]) -> KeysValues:
    """Pair keys and values, which follow one another, by layer."""
    return dict(zip(layers, zip(tensors[::2], tensors[1::2], strict=True), strict=True))


def export_encoder(graph: TranslatorEncoder, path: Path) -> None:
    """Write the encoder."""
    names = ["input_ids", "attention_mask"]
    # The tracer treats sizes of 0 and 1 as fixed.
    example = (torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long))
    shapes = {name: {0: BATCH, 1: SOURCE} for name in names}
    outputs = ["encoder_hidden_state", *cache_names("cross", graph.cross.used)]
    graphs.export_graph(graph, example, names, outputs, shapes, path)


def export_decoder(network: Network, path: Path) -> None:
    """Write one decoding step."""

    def caches(layers: list[Sublayer], length: int, dim: Any) -> tuple[list[Tensor], list[Any]]:
        """Keys and values to trace with, and their dynamic dimensions."""
        heads = [len(network.mask.kept(x.name)) for x in layers for _ in ("key", "value")]
        tensors = [torch.randn(2, count, length, layers[0].unit_width) for count in heads]
        return tensors, [{0: BATCH, 2: dim} for _ in tensors]

    cross, past = (with_heads(network, kind) for kind in ("cross", "decoder_self"))
    cross_caches, cross_dims = caches(cross, 5, SOURCE)
    past_caches, past_dims = caches(past, 3, PAST)
    source_mask = torch.ones(2, 5, dtype=torch.long) if cross else None
    # The position is the length of the past above.
    tokens, position = torch.ones(2, 1, dtype=torch.long), torch.tensor([3])
    example = (tokens, position, source_mask, cross_caches, past_caches)
    shapes = {
        "input_ids": {0: BATCH},
        "position": None,
        "attention_mask": {0: BATCH, 1: SOURCE} if cross else None,
        "cross": cross_dims,
        "past": past_dims,
    }
    names = ["input_ids", "position", *(["attention_mask"] if cross else [])]
    names += cache_names("cross", cross) + cache_names("past", past)
    outputs = ["logits", "best", *cache_names("present", past)]
    output = OutputLayer(network.model, network.tokens)
    with embedding_only(network.model, output, network.tokens):
        indices = ([x.index for x in layers] for layers in (cross, past))
        graph = DecoderStep(network.model, output, *indices)
        graphs.export_graph(graph, example, names, outputs, shapes, path)


def with_heads(network: Network, kind: str) -> list[Sublayer]:
    """The attentions of a kind that have heads left."""
    return [x for x in network.checkpoint.layers if x.kind == kind and network.mask.kept(x.name)]


def cache_names(prefix: str, sublayers: Iterable[Sublayer]) -> list[str]:
    """Names of the keys and values of sublayers: `PREFIX_key.LAYER`, `PREFIX_value.LAYER`."""
    return [f"{prefix}_{part}.{x.index}" for x in sublayers for part in ("key", "value")]


def export_cache_rows(network: Network, directory: Path) -> dict[str, str]:
    """Write graphs that select rows of the past alone, and of all caches, on the device.

    In beam search hypotheses are reordered, and finished sentences leave the batch.

    Args:
        network: a translator.
        directory: of the graphs.

    Returns:
        Role of each graph -> file name; none for a decoder without caches.
    """
    past = cache_names("past", with_heads(network, "decoder_self"))
    every = cache_names("cross", with_heads(network, "cross")) + past
    files = {}
    for role, names in ((SELECT_PAST, past), (SELECT_CACHES, every)):
        if names:
            files[role] = f"{role}.onnx"
            inputs = dict.fromkeys(names, TensorProto.FLOAT)
            graph = gather_graph(role, inputs, ROWS, selected, axis=0)
            write_small_graph(graph, directory / files[role])
    return files


def export_rank(directory: Path) -> dict[str, str]:
    """Write the graph that selects the best next tokens for a search with beams.

    Its softmax takes a third of the time of NumPy's exponentials, and all logits stay where they
    are.

    Args:
        directory: of the graphs.

    Returns:
        Its role -> file name.
    """
    logits, all_values = "logits", "log_probabilities"
    graph = make_graph(
        [
            make_node("LogSoftmax", [logits], [all_values], axis=-1),
            make_node("TopK", [all_values, COUNT], [TOP_VALUES, TOP_TOKENS], axis=-1),
        ],
        RANK,
        [
            make_tensor_value_info(logits, TensorProto.FLOAT, [None, None]),
            make_tensor_value_info(COUNT, TensorProto.INT64, [1]),
        ],
        [
            make_tensor_value_info(TOP_VALUES, TensorProto.FLOAT, [None, None]),
            make_tensor_value_info(TOP_TOKENS, TensorProto.INT64, [None, None]),
        ],
    )
    write_small_graph(graph, directory / f"{RANK}.onnx")
    return {RANK: f"{RANK}.onnx"}


def gather_graph(
    name: str, caches: Mapping[str, int], indices: str, rename: Callable[[str], str], axis: int
) -> onnx.GraphProto:
    """A graph that gathers entries of caches [batch, heads, length, head_dim] along an axis.

    Args:
        name: of the graph.
        caches: name -> type of its numbers.
        indices: name of the input with the numbers of the entries.
        rename: gives the output's name of a cache.
        axis: to gather along.
    """
    inputs = [make_tensor_value_info(x, kind, [None] * 4) for x, kind in caches.items()]
    return make_graph(
        [make_node("Gather", [x, indices], [rename(x)], axis=axis) for x in caches],
        name,
        [make_tensor_value_info(indices, TensorProto.INT64, [None]), *inputs],
        [make_tensor_value_info(rename(x), kind, [None] * 4) for x, kind in caches.items()],
    )


def write_small_graph(graph: onnx.GraphProto, path: Path) -> None:
    """Write a graph without weights, in versions that older runtimes read."""
    # With explicit versions: the defaults are the newest, which older runtimes cannot read.
    opsets = [make_opsetid("", _OPSET)]
    onnx.save(make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION), path)
