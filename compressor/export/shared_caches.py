"""Decoders that write keys and values into fixed buffers, instead of copying their caches to grow.

Self-attention becomes one of onnxruntime's own nodes. It appends to its caches in place, where its
inputs and outputs are the same buffers, and reads as much of them as is filled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto
from onnx.helper import make_node, make_opsetid
from onnx.numpy_helper import from_array

from compressor.runtime.decoder import CAPACITY

CONTRIBUTED = "com.microsoft"
_FILLED, _TOTAL = "caches.filled", "caches.total"  # positions before this step, and after it


def share_caches(model: ModelProto) -> None:
    """Rewrite the self-attention of a decoder step in place.

    Other graphs stay as they are, and so do heads whose size is no multiple of 8 and heads that
    add a bias to their scores, for which onnxruntime has no such node.

    Args:
        model: as `compressor.export.translator_graphs` writes it; its products may be integer ones.
    """
    if not can_share(model):
        return
    fuse_self_attention(model, _FILLED, _TOTAL)
    _count_positions(model)


def can_share(model: ModelProto) -> bool:
    """Whether the self-attention of a decoder step is what onnxruntime has a node for."""
    sizes = _sizes(model)
    layers = _layers(model)
    # The first layer stands for all: heads have one size, and all layers add a bias or none does.
    return bool(layers) and not (
        sizes[f"past_key.{layers[0]}"][3] % 8 or _has_bias(model.graph.node, layers[0])
    )


def fuse_self_attention(model: ModelProto, filled: str, total: str) -> None:
    """Make the self-attention of every layer one node that writes its caches in place.

    Args:
        model: one that `can_share`.
        filled: value with the positions that are filled before the step, int32 [batch].
        total: value with a length that all rows' positions fit into, int32 [1].
    """
    graph, sizes = model.graph, _sizes(model)
    for layer in _layers(model):
        block = _block(graph.node, layer)
        heads = sizes[f"past_key.{layer}"][1]
        # Queries, keys and values come in one input, so those of keys and values stay empty.
        inputs = [block.projected, "", "", f"past_key.{layer}", f"past_value.{layer}"]
        fused = make_node(
            "GroupQueryAttention",
            [*inputs, filled, total],
            [block.mixed, f"present_key.{layer}", f"present_value.{layer}"],
            domain=CONTRIBUTED,
            num_heads=heads,
            kv_num_heads=heads,  # a group for each head: attention as usual
            scale=1.0,  # the query's weights are scaled already
        )
        # After all that it reads and before all that reads it: ONNX wants nodes in this order.
        index = list(graph.node).index(block.last)
        graph.node.insert(index, fused)
        for node in block.nodes:
            graph.node.remove(node)
    # By this name of the length, the runtime knows that the graph writes in place.
    for value in (*graph.input, *graph.output):
        if value.name.startswith(("past_", "present_")):
            value.type.tensor_type.shape.dim[2].dim_param = CAPACITY
    # The domain may be named already, since integer products have an operator of it, too.
    if CONTRIBUTED not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(make_opsetid(CONTRIBUTED, 1))


def _sizes(model: ModelProto) -> dict[str, list[int]]:
    """The fixed sizes of every input; 0 where one is not."""
    return {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}


def _layers(model: ModelProto) -> list[str]:
    """Numbers of the layers with heads in their self-attention."""
    made = [value.name for value in model.graph.output]
    return [name.partition(".")[2] for name in made if name.startswith("present_key.")]


@dataclass(frozen=True)
class _Block:
    """Self-attention of one layer, between its two products.

    Args:
        projected: queries, keys and values one after the other, [batch, 1, 3 x heads x head_dim].
        mixed: its result, [batch, 1, heads x head_dim].
        nodes: that compute it.
        last: the last one of them.
    """

    projected: str
    mixed: str
    nodes: list[NodeProto]
    last: NodeProto


def _has_bias(nodes: list[NodeProto], layer: str) -> bool:
    makes = {name: node for node in nodes for name in node.output}
    transpose = reader(nodes, makes[f"present_key.{layer}"].output[0])
    scores = reader(nodes, transpose.output[0])
    return bool(reader(nodes, scores.output[0]).op_type == "Add")


def _block(nodes: list[NodeProto], layer: str) -> _Block:
    makes = {name: node for node in nodes for name in node.output}
    appended = [makes[f"present_{part}.{layer}"] for part in ("key", "value")]
    split = makes[appended[0].input[1]]
    divide = makes[split.input[0]]
    keys, values = (node.output[0] for node in appended)
    transpose = reader(nodes, keys)
    scores = reader(nodes, transpose.output[0])
    softmax = reader(nodes, scores.output[0])
    mix = reader(nodes, values)
    merge = reader(nodes, mix.output[0])
    chain = [divide, split, *appended, transpose, scores, softmax, mix, merge]
    kinds = "Reshape Split Concat Concat Transpose MatMul Softmax MatMul Reshape"
    assert [node.op_type for node in chain] == kinds.split()  # this package wrote the graph
    assert mix.input[0] == softmax.output[0]
    return _Block(divide.input[0], merge.output[0], chain, merge)


def reader(nodes: list[NodeProto], value: str) -> NodeProto:
    # One alone reads it, since this package wrote the graph; another graph must not be rewritten.
    (node,) = (node for node in nodes if value in node.input)
    return node


def _count_positions(model: ModelProto) -> None:
    """Compute how much of the buffers is filled: of each row [batch], and after the step [1].

    onnxruntime calls them `seqlens_k`, which is the length after the step less one, and
    `total_sequence_length`.
    """
    one = from_array(np.array([1], np.int32), "caches.one")
    model.graph.initializer.append(one)
    nodes = [
        make_node("Cast", ["position"], ["caches.position"], to=TensorProto.INT32),
        make_node("Add", ["caches.position", one.name], [_TOTAL]),
        make_node("Shape", ["input_ids"], ["caches.rows"], end=1),
        make_node("Expand", ["caches.position", "caches.rows"], [_FILLED]),
    ]
    # ONNX wants them in front of what reads them; each goes to the front, so the last one first.
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
