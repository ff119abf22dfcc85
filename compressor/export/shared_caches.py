"""Decoders that write keys and values into fixed buffers, instead of copying their caches to grow.

Self-attention becomes one of onnxruntime's own nodes. It appends to its caches in place, where its
inputs and outputs are the same buffers, and reads as much of them as is filled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnx.helper import make_node, make_opsetid
from onnx.numpy_helper import from_array

from compressor.export.graph_edit import CONTRIBUTED
from compressor.runtime.decoder import CAPACITY

_FILLED, _TOTAL = "caches.filled", "caches.total"  # positions before this step, and after it


def share_caches(model: ModelProto) -> None:
    """Rewrite the self-attention of a decoder step in place.

    Other graphs do not change, nor do heads whose size is no multiple of 8 or that add a bias to
    their scores, which onnxruntime's node does not support.

    Args:
        model: as `compressor.export.translator_graphs` writes it; its products may be integer ones.
    """
    if not can_share(model):
        return
    fuse_self_attention(model, _FILLED, _TOTAL)
    # The filled positions of each row [batch], and after the step [1]: onnxruntime's `seqlens_k` is
    # the length after the step minus one, and `total_sequence_length`.
    one = from_array(np.array([1], np.int32), "caches.one")
    model.graph.initializer.append(one)
    nodes = [
        make_node("Cast", ["position"], ["caches.position"], to=TensorProto.INT32),
        make_node("Add", ["caches.position", one.name], [_TOTAL]),
        make_node("Shape", ["input_ids"], ["caches.rows"], end=1),
        make_node("Expand", ["caches.position", "caches.rows"], [_FILLED]),
    ]
    # Inserted at the front, so in reverse order.
    for node in reversed(nodes):
        model.graph.node.insert(0, node)


def can_share(model: ModelProto) -> bool:
    """Whether onnxruntime has a node for the self-attention of a decoder step."""
    layers = _layers(model)
    if not layers:
        return False
    # The first layer stands for all: heads have one size, and all layers add a bias or none does.
    nodes, first = model.graph.node, layers[0]
    scores = reader(nodes, reader(nodes, f"present_key.{first}").output[0])
    has_bias = reader(nodes, scores.output[0]).op_type == "Add"
    return not has_bias and _sizes(model)[f"past_key.{first}"][3] % 8 == 0


def fuse_self_attention(model: ModelProto, filled: str, total: str) -> None:
    """Replace the self-attention of every layer by one node that writes its caches in place.

    Args:
        model: one that `can_share`.
        filled: value with the number of positions filled before the step, int32 [batch].
        total: value with a length of at least all rows' positions, int32 [1].
    """
    graph, sizes = model.graph, _sizes(model)
    for layer in _layers(model):
        chain = _attention_nodes(graph.node, layer)
        heads = sizes[f"past_key.{layer}"][1]
        # Queries, keys and values are one input, [batch, 1, 3 x heads x head_dim], so the inputs
        # for keys and values stay empty.
        inputs = [chain[0].input[0], "", "", f"past_key.{layer}", f"past_value.{layer}"]
        fused = make_node(
            "GroupQueryAttention",
            [*inputs, filled, total],
            [chain[-1].output[0], f"present_key.{layer}", f"present_value.{layer}"],
            domain=CONTRIBUTED,
            num_heads=heads,
            kv_num_heads=heads,  # a group for each head: attention as usual
            scale=1.0,  # the query's weights are scaled already
        )
        replace_chain(graph, chain, fused)
    # This name of the length signals to the runtime that the graph writes in place.
    for value in (*graph.input, *graph.output):
        if value.name.startswith(("past_", "present_")):
            value.type.tensor_type.shape.dim[2].dim_param = CAPACITY
    # Integer products may have added the domain already.
    if CONTRIBUTED not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(make_opsetid(CONTRIBUTED, 1))


def replace_chain(graph: GraphProto, chain: Sequence[NodeProto], fused: NodeProto) -> None:
    """Replace nodes by one, at the place of the last: ONNX requires topological order."""
    graph.node.insert(list(graph.node).index(chain[-1]), fused)
    for node in chain:
        graph.node.remove(node)


def _sizes(model: ModelProto) -> dict[str, list[int]]:
    """The fixed sizes of every input, and 0 for others."""
    return {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}


def _layers(model: ModelProto) -> list[str]:
    """Numbers of the layers with heads in their self-attention."""
    outputs = [value.name for value in model.graph.output]
    return [name.partition(".")[2] for name in outputs if name.startswith("present_key.")]


def _attention_nodes(nodes: Sequence[NodeProto], layer: str) -> list[NodeProto]:
    """The nodes of one layer's self-attention between its two products, first to last."""
    makes = {name: node for node in nodes for name in node.output}
    keys, values = (makes[f"present_{part}.{layer}"] for part in ("key", "value"))
    split = makes[keys.input[1]]
    divide = makes[split.input[0]]
    transpose = reader(nodes, keys.output[0])
    scores = reader(nodes, transpose.output[0])
    softmax = reader(nodes, scores.output[0])
    mix = reader(nodes, values.output[0])
    merge = reader(nodes, mix.output[0])
    chain = [divide, split, keys, values, transpose, scores, softmax, mix, merge]
    kinds = "Reshape Split Concat Concat Transpose MatMul Softmax MatMul Reshape"
    assert [node.op_type for node in chain] == kinds.split()  # this package wrote the graph
    assert mix.input[0] == softmax.output[0]
    return chain


def reader(nodes: Sequence[NodeProto], value: str) -> NodeProto:
    """The only node that reads a value, in a graph that this package wrote."""
    (node,) = (node for node in nodes if value in node.input)
    return node
