"""From a PyTorch module to an ONNX graph with dynamic batch and lengths."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import onnx_ir
import torch
from torch import nn

from compressor.errors import VerificationError
from compressor.export.tracing import TRANSLATIONS, quick_exporter

# Gelu is one node from 20 on, layer normalization from 17 on. Nothing newer is used, so that older
# runtimes can read the graphs. Attention is written out: see compressor/export/attention.py.
OPSET = 20
# Weights are stored in a file beside the graph: written one after the other, they are not in memory
# several times over, as they are while one protobuf message is made of them. The name is the one
# that the loaders of Hugging Face optimum download together with a graph.
WEIGHTS_SUFFIX = "_data"
INLINE_BYTES = 1024  # weights up to this size stay in the graph's own file

BATCH = torch.export.Dim("batch", min=1)
SOURCE = torch.export.Dim("source", min=1)
PAST = torch.export.Dim("past", min=0)


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
        example: inputs to trace with; the tracer takes a size of 0 or 1 for fixed.
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
        with warnings.catch_warnings(), quiet, uncached, quick_exporter(), torch.no_grad():
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
    onnx_ir.save(program.model, path, external_data=weights, size_threshold_bytes=INLINE_BYTES)


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
