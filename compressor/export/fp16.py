"""Float32 graphs to float16 ones, for GPUs, whose kernels still add up long sums in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnx.helper import make_attribute, make_node
from onnx.numpy_helper import from_array, to_array

from compressor.errors import InputError
from compressor.export.graph_edit import readers_of, stored_array
from compressor.runtime.graph_names import HISTORY

LOGITS = "logits"
_NORM = ("Pow", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul")


def to_fp16(model: ModelProto, directory: Path = Path()) -> ModelProto:
    """Convert a graph to float16; `logits` stay float32, but for those of `export.device_step`.

    Args:
        model: of this package; it stays as it is.
        directory: of its external data.

    Raises:
        InputError: a weight is too large for float16.
    """
    converted = ModelProto()
    converted.CopyFrom(model)
    graph = converted.graph
    # Before weights are rounded, since these are computed in float32 with the original epsilon.
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    normalizations = find_norms(model.graph.node, constants, directory)
    for tensor in graph.initializer:
        _convert_tensor(tensor, directory)
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(make_attribute("value", from_array(np.zeros(1, np.float16))))
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                if attribute.i == TensorProto.FLOAT:
                    attribute.i = TensorProto.FLOAT16
            elif attribute.HasField("t"):
                _convert_tensor(attribute.t)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del graph.value_info[:]  # of type float32; onnxruntime infers the new types
    _keep_float32(graph, normalizations)
    # A step that is replayed as a CUDA graph writes logits once, since they are seldom read.
    if HISTORY not in {value.name for value in graph.input}:
        for logits in [value for value in graph.output if value.name == LOGITS]:
            # As float32, since the search adds up their logarithms over many steps.
            logits.type.tensor_type.elem_type = TensorProto.FLOAT
            half = f"{LOGITS}.half"
            # The nodes that select the best token read float16 logits.
            for node in graph.node:
                node.output[:] = [half if name == LOGITS else name for name in node.output]
                node.input[:] = [half if name == LOGITS else name for name in node.input]
            graph.node.append(make_node("Cast", [half], [LOGITS], to=TensorProto.FLOAT))
    return converted


def _convert_tensor(tensor: TensorProto, directory: Path = Path()) -> None:
    """Round a float32 weight to float16, in place.

    Raises:
        InputError: it is too large.
    """
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


def find_norms(
    nodes: Sequence[NodeProto], constants: Mapping[str, TensorProto], directory: Path
) -> list[tuple[list[NodeProto], TensorProto]]:
    """Find the normalizations by the root mean square of a float32 graph.

    They are `x * 1 / sqrt(mean(x ** 2) + epsilon)`, from `Pow` to `Mul`.

    Args:
        nodes: of the graph.
        constants: name -> weight.
        directory: of external data.

    Returns:
        The nodes of each, and its epsilon.
    """
    readers = readers_of(nodes)
    norms = []
    for first in nodes:
        chain = [first]
        for kind in _NORM[:-1]:
            after = readers.get(chain[-1].output[0], []) if chain[-1].op_type == kind else []
            if len(after) != 1:
                break
            chain += after
        is_norm = len(chain) == len(_NORM) and chain[-1].op_type == _NORM[-1]
        if is_norm and first.input[0] in chain[-1].input:
            for epsilon in (constants[x] for x in chain[2].input if x in constants):
                norms.append((chain, from_array(to_array(epsilon, str(directory)))))
    return norms


def _keep_float32(graph: GraphProto, norms: Sequence[tuple[list[NodeProto], TensorProto]]) -> None:
    """Make a float16 graph compute these normalizations of its float32 graph in float32.

    The square of 256 exceeds float16, and hidden states of T5 are in the thousands.
    """
    before: dict[str, NodeProto] = {}  # value -> the cast to insert before the node that makes it
    after: dict[str, NodeProto] = {}
    nodes = {node.output[0]: node for node in graph.node if node.output}
    for chain, epsilon in norms:
        square, mean, add, _, _, product = (nodes[x.output[0]] for x in chain)
        hidden, whole = square.input[0], product.output[0]
        single = f"{square.output[0]}.single"
        before[square.output[0]] = make_node("Cast", [hidden], [single], to=TensorProto.FLOAT)
        # The exponent of `Pow` was converted to float16; a product needs none.
        square.op_type = "Mul"
        square.input[:] = [single, single]
        epsilon.name = f"{add.output[0]}.epsilon"
        graph.initializer.append(epsilon)
        add.input[:] = [mean.output[0], epsilon.name]
        product.input[:] = [single if x == hidden else x for x in product.input]
        product.output[:] = [f"{whole}.single"]
        cast = make_node("Cast", [f"{whole}.single"], [whole], to=TensorProto.FLOAT16)
        after[f"{whole}.single"] = cast
    ordered: list[NodeProto] = []
    for node in graph.node:
        name = node.output[0] if node.output else ""
        ordered += [x for x in (before.get(name), node, after.get(name)) if x is not None]
    del graph.node[:]
    graph.node.extend(ordered)
