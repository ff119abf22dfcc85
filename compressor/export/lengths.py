"""Computing positions and shapes from the mask, on the device.

The exporter computes lengths by `Shape`, and positions from them by `Range` or `Slice`, all of
which onnxruntime computes on the CPU.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto
from onnx.numpy_helper import from_array

from compressor.export.fused_attention import MASK
from compressor.export.graph_edit import GraphEdit, attribute

_POSITIONS = "places"  # 0, 1, 2, … [tokens] int64
_BROADCASTING = ("Add", "Sub", "Mul", "Div")


def without_shapes(edit: GraphEdit) -> None:
    """Rewrite nodes that read lengths, if their form is known."""
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
