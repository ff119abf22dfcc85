"""Encoders' graphs for CUDA: fused nodes, and none on the CPU.

They are rewritten from the float32 graphs of `compressor.export`, whose forms are known. A layer of
BERT becomes seven nodes: attention with its input product, MatMul, residual sum with normalization,
MatMul, bias with Gelu, MatMul, second residual sum. Attention uses the length of each row as mask,
so padding must be on the right. Nodes for shapes, which onnxruntime computes on the CPU, are
removed, so the graph can be captured as a CUDA graph.

The embeddings' normalization stays a node of its own: the operator that fuses it with the lookups
sums squares in float16, with an error of up to a percent for embeddings of 0.05.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto
from onnx.numpy_helper import from_array

from compressor.export.fp16 import find_norms
from compressor.export.fused_attention import LENGTHS, MASK, find_blocks, replace_attention
from compressor.export.graph_edit import CONTRIBUTED, GraphEdit, attribute, is_tensor_of

_POSITIONS = "places"  # 0, 1, 2, … [tokens] int64
_BROADCASTING = ("Add", "Sub", "Mul", "Div")
# Constants of the tanh approximation of Gelu, rounded -> the nodes that read them.
_TANH_GELU = {0.5: "Mul", 3.0: "Pow", 0.0447: "Mul", 0.7979: "Mul", 1.0: "Add"}


def fuse(model: ModelProto, directory: Path = Path()) -> ModelProto | None:
    """The graph of an encoder for CUDA, in float32; None if its attention cannot be fused.

    Inputs, outputs and weights do not change.

    Args:
        directory: of the model's external data, if it has any.

    Raises:
        VerificationError: the graph has an unknown form.
    """
    edit = GraphEdit(model, directory)
    blocks = find_blocks(edit)
    if blocks is None:
        return None
    one = edit.constant("axis_1", [1])
    edit.prepend(
        edit.node("ReduceSum", [MASK, one], [f"{LENGTHS}.int64"], keepdims=0),
        edit.node("Cast", [f"{LENGTHS}.int64"], [LENGTHS], to=TensorProto.INT32),
    )
    for block in blocks:
        replace_attention(edit, block)
    edit.drop_unread()
    _without_shapes(edit)
    for node in list(edit.nodes):
        if node.op_type == "Gelu":
            _fuse_gelu(edit, node)
        elif node.op_type == "Tanh":
            _fuse_tanh_gelu(edit, node)
    _fuse_norms(edit)
    return edit.finish()


def _without_shapes(edit: GraphEdit) -> None:
    """Compute positions and shapes from the mask, on the device.

    The exporter computes lengths by `Shape`, and positions from them by `Range` or `Slice`, all of
    which onnxruntime computes on the CPU. Nodes of other forms stay.
    """
    rewrites = {
        "Range": _range, "Slice": _slice, "Expand": _expand, "ConstantOfShape": _zeros,
        "Reshape": _looked_up, "GatherElements": _gather_elements, "GatherND": _gather_rows,
    }  # fmt: skip
    for node in list(edit.nodes):
        if node.op_type in rewrites:
            rewrites[node.op_type](edit, node)
    edit.drop_unread()


def _is_length(edit: GraphEdit, value: str) -> bool:
    """Whether a value is computed from lengths alone."""
    return edit.maker(value, "Shape", "Concat", "Squeeze") is not None


def _numbers(edit: GraphEdit, names: list[str]) -> list[list[int]]:
    arrays = (edit.array(name) for name in names)
    return [[] if array is None else array.reshape(-1).tolist() for array in arrays]


def _positions(edit: GraphEdit) -> str:
    """The name of the positions; nodes that compute them are added if missing."""
    if _POSITIONS not in edit.makes:
        first, row, same, ones = (f"{_POSITIONS}.{x}" for x in ("first", "row", "same", "ones"))
        zero = edit.constant(first, 0)
        edit.prepend(
            edit.node("Gather", [MASK, zero], [row], axis=0),
            edit.node("Equal", [row, row], [same]),
            edit.node("Cast", [same], [ones], to=TensorProto.INT64),
            edit.node("CumSum", [ones, zero], [_POSITIONS], exclusive=1),
        )
    return _POSITIONS


def _range(edit: GraphEdit, node: NodeProto) -> None:
    start, limit, step = node.input
    if _numbers(edit, [start, step]) == [[0], [1]] and _is_length(edit, limit):
        edit.read_instead(node.output[0], _positions(edit))


def _slice(edit: GraphEdit, node: NodeProto) -> None:
    """The first rows, or columns, of a table."""
    table, start, end, axes, steps = [*node.input, "", ""][:5]
    first, axis, step = _numbers(edit, [start, axes, steps])
    if table in edit.constants and _is_length(edit, end) and (first, step) == ([0], [1]):
        rows = edit.node("Gather", [table, _positions(edit)], node.output, axis=axis[0])
        edit.replace([node], node, rows)


def _expand(edit: GraphEdit, node: NodeProto) -> None:
    """Removed before operators that broadcast."""
    readers = edit.readers(node.output[0])
    if _is_length(edit, node.input[1]) and all(x.op_type in _BROADCASTING for x in readers):
        edit.read_instead(node.output[0], node.input[0])


def _zeros(edit: GraphEdit, node: NodeProto) -> None:
    """Removed: the output of layers without units and without a bias."""
    value = node.output[0]
    for add in edit.readers(value):
        if add.op_type == "Add" and not node.attribute and add.output[0] not in edit.outputs:
            (other,) = (name for name in add.input if name != value)
            edit.read_instead(add.output[0], other)


def _looked_up(edit: GraphEdit, node: NodeProto) -> None:
    """A lookup with flattened indices and a reshape becomes one lookup."""
    gather = edit.maker(node.input[0], "Gather")
    flat = edit.maker(gather.input[1], "Reshape") if gather is not None else None
    if gather is None or flat is None or not _is_length(edit, node.input[1]):
        return
    if _numbers(edit, [flat.input[1]]) == [[-1]] and attribute(gather, "axis", 0) == 0:
        rows = edit.node("Gather", [gather.input[0], flat.input[0]], node.output, axis=0)
        edit.replace([node], node, rows)


def _gather_elements(edit: GraphEdit, node: NodeProto) -> None:
    """A lookup in a table of one row, [1, length], expanded over the batch."""
    expand = edit.maker(node.input[0], "Expand")
    table = edit.array(expand.input[0]) if expand is not None else None
    if expand is not None and table is not None and table.shape[0] == 1 and table.ndim == 2:
        row = f"{expand.input[0]}.row"
        edit.constants[row] = from_array(np.ascontiguousarray(table[0]), row)
        edit.replace([node], node, edit.node("Gather", [row, node.input[1]], node.output, axis=0))


def _gather_rows(edit: GraphEdit, node: NodeProto) -> None:
    """A lookup in a table of one dimension, by indices with an additional dimension."""
    table = edit.array(node.input[0])
    indices = edit.maker(node.input[1], "Unsqueeze")
    if table is not None and table.ndim == 1 and indices is not None:
        inputs = [node.input[0], indices.input[0]]
        edit.replace([node], node, edit.node("Gather", inputs, node.output, axis=0))


def _linear(edit: GraphEdit, value: str) -> tuple[str, str] | None:
    """Product and bias (or "") of a linear layer whose output only one node reads."""
    if len(edit.readers(value)) > 1 or value in edit.outputs:
        return None
    if edit.maker(value, "MatMul"):
        return value, ""
    add = edit.maker(value, "Add")
    if add is not None:
        for product, bias in (add.input, reversed(add.input)):
            if edit.maker(product, "MatMul") and is_tensor_of(edit.constants.get(bias), 1):
                return product, bias
    return None


def _fuse_gelu(edit: GraphEdit, gelu: NodeProto) -> None:
    linear = _linear(edit, gelu.input[0])
    if linear is not None and linear[1]:
        kind = "FastGelu" if attribute(gelu, "approximate") == b"tanh" else "BiasGelu"
        fused = edit.node(kind, linear, gelu.output, domain=CONTRIBUTED)
        edit.replace([gelu, edit.makes[gelu.input[0]]], gelu, fused)


def _fuse_tanh_gelu(edit: GraphEdit, tanh: NodeProto) -> None:
    """x / 2 (1 + tanh(0.798 (x + 0.0447 x^3))), as transformers writes it out."""
    plus_one = edit.only_reader(tanh.output[0], "Add")
    product = edit.only_reader(plus_one.output[0], "Mul") if plus_one is not None else None
    if plus_one is None or product is None:
        return
    (half,) = (name for name in product.input if name != plus_one.output[0])
    halved = edit.maker(half, "Mul")
    hidden = next((x for x in halved.input if x not in edit.constants), "") if halved else ""
    # The nodes of the formula: x^3, its factor, the sum, the scale, tanh, and both factors.
    before = {id(node) for node in edit.ancestors(hidden)}
    nodes = [x for x in edit.ancestors(product.output[0]) if id(x) not in before]
    constants = {}
    for node in nodes:
        for name in node.input:
            value = edit.array(name)
            if value is not None and value.size == 1:
                constants[round(float(value.reshape(())), 4)] = node.op_type
    if len(nodes) == 8 and constants == _TANH_GELU:
        linear = _linear(edit, hidden)
        source = linear if linear is not None and linear[1] else (hidden,)
        fused = edit.node("FastGelu", source, product.output, domain=CONTRIBUTED)
        edit.replace(nodes, product, fused)


def _fuse_norms(edit: GraphEdit) -> None:
    """Fuse normalizations with the residual sum before them and its bias."""
    norms = [(node, [node]) for node in edit.nodes if node.op_type == "LayerNormalization"]
    for chain, _ in find_norms(edit.nodes, edit.constants, edit.directory):
        scale = edit.only_reader(chain[-1].output[0], "Mul")
        if scale is not None:
            norms.append((scale, [*chain, scale]))
    for last, nodes in norms:
        add = edit.maker(nodes[0].input[0], "Add")
        if add is None:
            continue
        for added, residual in (add.input, reversed(add.input)):
            linear = _linear(edit, added)
            if linear is not None and residual not in edit.constants:
                _join(edit, last, nodes, add, linear, residual)
                break


def _join(
    edit: GraphEdit,
    last: NodeProto,
    nodes: list[NodeProto],
    add: NodeProto,
    linear: tuple[str, str],
    residual: str,
) -> None:
    """Replace a normalization, ending with `last`, and the sum of a layer and a residual."""
    hidden = add.output[0]
    product, bias = linear
    if len(nodes) == 1:
        kind, epsilon = "SkipLayerNormalization", attribute(last, "epsilon", 1e-5)
        weights = [*last.input[1:], ""][:2]  # some have no bias
    else:
        kind = "SkipSimplifiedLayerNormalization"
        weights = [name for name in last.input if name in edit.constants]
        plus_epsilon = next(node for node in nodes if node.op_type == "Add")
        (value,) = (edit.array(x) for x in plus_epsilon.input if x in edit.constants)
        assert value is not None
        epsilon = float(value.reshape(()))
    inner = {id(node) for node in nodes}
    others = [node for node in edit.readers(hidden) if id(node) not in inner]
    # The sum is an output too if others read it: the residual of pre-norm layers.
    outputs = [last.output[0]]
    if others or hidden in edit.outputs:
        outputs += ["", "", hidden]
    fused = edit.node(
        kind, [product, residual, *weights, bias], outputs, domain=CONTRIBUTED, epsilon=epsilon
    )
    replaced = [add, *nodes]
    if bias:
        (sum_with_bias,) = (edit.makes[x] for x in add.input if x != residual)
        replaced.append(sum_with_bias)
    edit.replace(replaced, add, fused)
