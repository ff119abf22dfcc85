"""Float32 graphs to half precision ones, for GPUs.

Weights, activations and caches become float16; logits come out as float32. Where sums are long,
kernels keep float32 inside: layer normalisation by the standard's `stash_type`, softmax and matrix
products in onnxruntime's CUDA kernels. The mask's -1e4 (`compressor.export.attention.MASKED`) is
finite in float16 and far below any score.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compressor.errors import InputError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto

LOGITS = "logits"


def to_fp16(model: ModelProto, directory: Path = Path()) -> ModelProto:
    """Turn the graph into half precision, in place; only `logits` is still float32.

    Args:
        model: as `compressor.export.graphs` writes it.
        directory: where its external data lies, if it has any.

    Raises:
        InputError: a weight is too large for half precision.
    """
    graph = model.graph
    for tensor in graph.initializer:
        _halve(tensor, directory)
    _halve_nodes(graph)
    for value in (*graph.input, *graph.output):
        _halve_type(value.type.tensor_type)
    del graph.value_info[:]  # onnxruntime finds the types of inner values by itself
    _widen_logits(graph)
    return model


def _halve(tensor: TensorProto, directory: Path = Path()) -> None:
    from onnx import TensorProto
    from onnx.numpy_helper import from_array, to_array

    if tensor.data_type != TensorProto.FLOAT:
        return
    values = to_array(tensor, str(directory))
    largest = float(np.abs(values).max(initial=0))
    if not largest <= float(np.finfo(np.float16).max):
        raise InputError(
            f"the weight {tensor.name} holds {largest:g}, which half precision cannot; leave fp16 "
            "out of --precision"
        )
    tensor.CopyFrom(from_array(values.astype(np.float16), tensor.name))


def _halve_nodes(graph: GraphProto) -> None:
    from onnx import TensorProto
    from onnx.helper import make_attribute
    from onnx.numpy_helper import from_array

    for node in graph.node:
        if node.op_type == "ConstantOfShape" and not node.attribute:
            zero = from_array(np.zeros(1, np.float16))
            node.attribute.append(make_attribute("value", zero))
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                if attribute.i == TensorProto.FLOAT:
                    attribute.i = TensorProto.FLOAT16
            elif attribute.HasField("t"):
                _halve(attribute.t)


def _halve_type(tensor_type: object) -> None:
    from onnx import TensorProto

    if tensor_type.elem_type == TensorProto.FLOAT:  # type: ignore[attr-defined]
        tensor_type.elem_type = TensorProto.FLOAT16  # type: ignore[attr-defined]


def _widen_logits(graph: GraphProto) -> None:
    """Give the logits out as float32: what reads them compares and adds up their logarithms."""
    from onnx import TensorProto
    from onnx.helper import make_node

    for value in graph.output:
        if value.name == LOGITS:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            narrow = f"{LOGITS}.half"
            for node in graph.node:
                renamed = [narrow if name == LOGITS else name for name in node.output]
                node.output[:] = renamed
                node.input[:] = [narrow if name == LOGITS else name for name in node.input]
            graph.node.append(make_node("Cast", [narrow], [LOGITS], to=TensorProto.FLOAT))
