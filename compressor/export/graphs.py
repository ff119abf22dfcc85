"""From a (pruned) PyTorch model to ONNX graphs with dynamic batch and lengths.

Classifiers become one graph. Translators become an encoder, which also emits the cross-attention
keys and values of all decoder layers, and a one-step decoder with a key/value cache.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import onnx_ir
import torch
from torch import Tensor, nn

from compressor.errors import VerificationError
from compressor.export.attention import (
    CrossKeysValues,
    StepState,
    additive_mask,
    graph_attention,
)
from compressor.export.cache_rows import export_cache_rows
from compressor.export.tracing import TRANSLATIONS, traced_once
from compressor.export.vocabulary import OutputLayer, embedding_only, largest
from compressor.model.architectures import architecture_of
from compressor.model.memory import release
from compressor.model.sublayers import Mask, Sublayer
from compressor.tasks import get_task

# Gelu is one node from 20 on, layer normalization from 17 on. Nothing newer is used, so that older
# runtimes can read the graphs. Attention is written out: see compressor/export/attention.py.
OPSET = 20
# Weights are stored in a file beside the graph: written one after the other, they are not in memory
# several times over, as they are while one protobuf message is made of them. The name is the one
# that the loaders of Hugging Face optimum download together with a graph.
WEIGHTS_SUFFIX = "_data"
INSIDE_BYTES = 1024  # weights up to this size stay in the graph's own file


class ClassifierGraph(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        extra = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        mask = additive_mask(attention_mask)
        return self.model(input_ids=input_ids, attention_mask=mask, **extra).logits


class EncoderGraph(nn.Module):
    def __init__(self, model: nn.Module, layers: Sequence[Sublayer], mask: Mask) -> None:
        super().__init__()
        self.encoder = model.get_encoder()  # type: ignore[operator]
        self.cross = CrossKeysValues(model, layers, mask)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
        mask = additive_mask(attention_mask)
        hidden = self.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state
        return [hidden, *self.cross(hidden)]


class DecoderGraph(nn.Module):
    """One decoding step: logits of the next token, the best one, and the grown cache."""

    def __init__(
        self,
        model: nn.Module,
        output: OutputLayer,
        cross: Sequence[int],
        decoder_self: Sequence[int],
    ) -> None:
        super().__init__()
        self.decoder = model.get_decoder()  # type: ignore[operator]
        self.output = output
        # Indices of the layers with heads in their cross- and in their self-attention.
        self.cross, self.decoder_self = list(cross), list(decoder_self)

    def forward(
        self,
        input_ids: Tensor,
        position: Tensor,
        attention_mask: Tensor | None,
        cross: list[Tensor],
        past: list[Tensor],
    ) -> list[Tensor]:
        state = StepState(
            position,
            {i: (cross[2 * n], cross[2 * n + 1]) for n, i in enumerate(self.cross)},
            {i: (past[2 * n], past[2 * n + 1]) for n, i in enumerate(self.decoder_self)},
        )
        unmasked = torch.zeros(1, 1, 1, 1)
        hidden = self.decoder(
            input_ids=input_ids,
            # transformers adds a mask of four dimensions to the scores as it is.
            attention_mask=unmasked,
            encoder_attention_mask=(
                unmasked if attention_mask is None else additive_mask(attention_mask)
            ),
            # It must be given, but is not read: keys and values come from the state.
            encoder_hidden_states=torch.zeros(1, 1, self.output.weight.shape[1]),
            past_key_values=state,
            use_cache=True,
        ).last_hidden_state
        logits = self.output(hidden[:, -1])  # [batch, 1, width] -> [batch, tokens]
        # The best token is an output too: greedy search then reads one number per row, and the
        # logits stay on the GPU.
        return [logits, largest(logits), *(t for i in self.decoder_self for t in state.present[i])]


def export_graphs(
    model: nn.Module,
    layers: Sequence[Sublayer],
    mask: Mask,
    directory: Path,
    skip: Collection[str] = (),
    tokens: list[int] | None = None,
) -> dict[str, str]:
    """Write the model's graphs (opset `OPSET`, float32) into `directory`.

    Args:
        tokens: ids of the tokens that the decoder scores (`vocabulary.output_tokens`). Its inputs
            and outputs are then indices into this list. None: all tokens.
        skip: roles of graphs that are not written, because the directory has them already.

    Returns:
        Role of each graph (`model`, or `encoder` and `decoder`) -> file name.
    """
    directory.mkdir(parents=True, exist_ok=True)
    entry = architecture_of(model)
    model.eval()
    if not get_task(entry.task).generates:
        with graph_attention(model, layers, mask):
            _export_classifier(model, list(entry.inputs), directory / "model.onnx")
        return {"model": "model.onnx"}
    files = {"encoder": "encoder.onnx", "decoder": "decoder.onnx"}
    # Made before the attention is replaced, since it reads the cross-attention's projections.
    encoder = EncoderGraph(model, layers, mask)
    with graph_attention(model, layers, mask):
        if "encoder" not in skip:
            _export_encoder(encoder, directory / files["encoder"])
        if "decoder" not in skip:
            _export_decoder(model, layers, mask, tokens, directory / files["decoder"])
    release(encoder.cross)
    cross, past = (
        _cache_names(name, [x.index for x in _with_heads(layers, mask, kind)])
        for name, kind in (("cross", "cross"), ("past", "decoder_self"))
    )
    return files | export_cache_rows(cross, past, directory)


BATCH = torch.export.Dim("batch", min=1)
SOURCE = torch.export.Dim("source", min=1)
PAST = torch.export.Dim("past", min=0)


def _export_classifier(model: nn.Module, names: list[str], path: Path) -> None:
    example = [torch.ones(2, 5, dtype=torch.long) for _ in names]
    shapes = {name: {0: BATCH, 1: SOURCE} for name in names}
    export_graph(ClassifierGraph(model), tuple(example), names, ["logits"], shapes, path)


def _export_encoder(graph: EncoderGraph, path: Path) -> None:
    names = ["input_ids", "attention_mask"]
    example = (torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long))
    shapes = {name: {0: BATCH, 1: SOURCE} for name in names}
    outputs = ["encoder_hidden_state", *_cache_names("cross", [x.index for x in graph.cross.used])]
    export_graph(graph, example, names, outputs, shapes, path)


def _export_decoder(
    model: nn.Module,
    layers: Sequence[Sublayer],
    mask: Mask,
    tokens: list[int] | None,
    path: Path,
) -> None:
    used = {kind: _with_heads(layers, mask, kind) for kind in ("cross", "decoder_self")}
    cross, decoder_self = ([x.index for x in used[k]] for k in ("cross", "decoder_self"))
    tensors = {}
    for kind, length in (("cross", 5), ("decoder_self", 3)):
        tensors[kind] = [
            torch.randn(2, len(mask.kept(x.name)), length, x.unit_width)
            for x in used[kind]
            for _ in ("key", "value")
        ]
    source_mask = torch.ones(2, 5, dtype=torch.long) if cross else None
    example = (
        torch.ones(2, 1, dtype=torch.long),
        torch.tensor([3]),
        source_mask,
        tensors["cross"],
        tensors["decoder_self"],
    )
    shapes = {
        "input_ids": {0: BATCH},
        "position": None,
        "attention_mask": {0: BATCH, 1: SOURCE} if cross else None,
        "cross": [{0: BATCH, 2: SOURCE} for _ in tensors["cross"]],
        "past": [{0: BATCH, 2: PAST} for _ in tensors["decoder_self"]],
    }
    names = ["input_ids", "position", *(["attention_mask"] if cross else [])]
    names += _cache_names("cross", cross) + _cache_names("past", decoder_self)
    outputs = ["logits", "best", *_cache_names("present", decoder_self)]
    output = OutputLayer(model, tokens)
    with embedding_only(model, output, tokens):
        graph = DecoderGraph(model, output, cross, decoder_self)
        export_graph(graph, example, names, outputs, shapes, path)


def _with_heads(layers: Sequence[Sublayer], mask: Mask, kind: str) -> list[Sublayer]:
    return [x for x in layers if x.kind == kind and mask.kept(x.name)]


def _cache_names(prefix: str, indices: Sequence[int]) -> list[str]:
    return [f"{prefix}_{part}.{i}" for i in indices for part in ("key", "value")]


def export_graph(
    graph: nn.Module,
    example: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    shapes: dict[str, Any],
    path: Path,
) -> None:
    """Export one graph without the exporter's output, and check its inputs and outputs.

    Args:
        example: inputs to trace with.
        shapes: for each input its dynamic dimensions, as `torch.onnx.export` takes them.

    Raises:
        VerificationError: the graph has other inputs or outputs than `inputs` and `outputs`.
    """
    from torch._dynamo import config as tracing

    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    exporter_log.setLevel(logging.ERROR)
    # With dynamic shapes the tracer's cache costs more time than it saves.
    uncached = tracing.patch(fake_tensor_cache_enabled=False)
    quiet = contextlib.redirect_stdout(io.StringIO())
    try:
        with warnings.catch_warnings(), quiet, uncached, traced_once(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                graph.eval(),
                example,
                dynamo=True,
                opset_version=OPSET,
                input_names=inputs,
                output_names=outputs,
                dynamic_shapes=shapes,
                custom_translation_table=TRANSLATIONS,
                optimize=True,
                verbose=False,
            )
    finally:
        exporter_log.setLevel(level)
    assert program is not None
    names = [value.name for value in (*program.model.graph.inputs, *program.model.graph.outputs)]
    if names != inputs + outputs:
        raise VerificationError(
            f"the exporter changed the inputs or outputs of {path.name}: {names}",
            id="exported-names-differ",
        )
    _strip_traces(program.model)
    weights = path.name + WEIGHTS_SUFFIX
    onnx_ir.save(program.model, path, external_data=weights, size_threshold_bytes=INSIDE_BYTES)


def _strip_traces(model: Any) -> None:
    """Drop stack traces and module names, which differ between machines: same model, same bytes."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
