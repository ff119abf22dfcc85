"""Float32 graphs to float16 ones, for GPUs.

Weights, activations and caches become float16; logits come out as float32. Kernels still add up
long sums in float32: layer normalization by the standard's `stash_type`, softmax and matrix
products in onnxruntime's CUDA kernels. T5's normalization is computed in float32. The mask's -1e4
(`compressor.export.attention.MASKED`) is finite in float16 and far below any score.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto
from onnx.helper import make_attribute, make_node
from onnx.numpy_helper import from_array

from compressor.errors import InputError
from compressor.export.fp16_normalization import find_norms, keep_float32
from compressor.export.stored_arrays import stored_array
from compressor.runtime.device_buffers import HISTORY

LOGITS = "logits"


def to_fp16(model: ModelProto, directory: Path = Path()) -> ModelProto:
    """The graph in float16 with float32 `logits` (float16 for those of `export.device_step`).

    Args:
        model: as `compressor.export.graphs` writes it.
        directory: of its external data, if it has any.

    Raises:
        InputError: a weight is too large for float16.
    """
    converted = ModelProto()
    converted.CopyFrom(model)
    graph = converted.graph
    # Before weights are rounded, since these are computed in float32 with the original epsilon.
    normalizations = find_norms(model.graph, directory)
    for tensor in graph.initializer:
        _convert_tensor(tensor, directory)
    _convert_nodes(graph)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del graph.value_info[:]  # of type float32; onnxruntime infers the new types
    keep_float32(graph, normalizations)
    # A step that is replayed as a CUDA graph writes logits once, since they are seldom read.
    if HISTORY not in {value.name for value in graph.input}:
        _cast_logits(graph)
    return converted


def _convert_tensor(tensor: TensorProto, directory: Path = Path()) -> None:
    if tensor.data_type != TensorProto.FLOAT:
        return
    values = stored_array(tensor, directory)
    largest = float(np.abs(values).max(initial=0))
    if not largest <= float(np.finfo(np.float16).max):  # also true for NaN
        raise InputError(
            f"the weight {tensor.name} holds {largest:g}, which is too large for float16; leave "
            "fp16 out of --precision",
            id="weight-too-large-for-fp16",
        )
    tensor.CopyFrom(from_array(values.astype(np.float16), tensor.name))


def _convert_nodes(graph: GraphProto) -> None:
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and not node.attribute:
            # Its default value is a float32 zero.
            zero = from_array(np.zeros(1, np.float16))
            node.attribute.append(make_attribute("value", zero))
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                if attribute.i == TensorProto.FLOAT:
                    attribute.i = TensorProto.FLOAT16
            elif attribute.HasField("t"):
                _convert_tensor(attribute.t)


def _cast_logits(graph: GraphProto) -> None:
    """Return the logits as float32: the search adds up their logarithms over many steps."""
    for value in graph.output:
        if value.name == LOGITS:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            half = f"{LOGITS}.half"
            # The nodes that select the best token read float16 logits.
            for node in graph.node:
                renamed = [half if name == LOGITS else name for name in node.output]
                node.output[:] = renamed
                node.input[:] = [half if name == LOGITS else name for name in node.input]
            graph.node.append(make_node("Cast", [half], [LOGITS], to=TensorProto.FLOAT))
