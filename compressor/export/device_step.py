"""A decoder step whose whole state stays on the device, so that steps run without the host.

Its inputs and outputs are the same buffers in every step: the caches, the token, the position. So
a GPU can replay it as a CUDA graph, and the host reads the chosen tokens every few steps. It has no
node on the CPU and computes no sizes. Written for CUDA in float16; in float32 it runs on CPUs too,
where it is tested.

Each attention is one node: `GroupQueryAttention` for self-attention, and `MultiHeadAttention` for
cross-attention, with the number of source tokens of each row in place of a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto
from onnx.helper import make_graph, make_node, make_tensor_value_info
from onnx.numpy_helper import from_array

from compressor.export.cache_rows import gather_graph, write_small_graph
from compressor.export.fp16 import LOGITS
from compressor.export.graph_edit import CONTRIBUTED, read_nodes
from compressor.export.shared_caches import can_share, fuse_self_attention, reader, replace_chain
from compressor.runtime import device_decoder as buffers
from compressor.runtime.decoder import BEST

_FLOAT, _INT32, _INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


def keep_state(model: ModelProto, directory: Path = Path()) -> ModelProto | None:
    """The form of a decoder step that keeps its state on the device.

    Args:
        model: in float32, as `compressor.export.translator_graphs` writes it.

    Returns:
        None for a decoder without heads in its self-attention, with heads whose size is no multiple
        of 8, or with biases of relative positions.
    """
    if not can_share(model):
        return None
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    fuse_self_attention(made, buffers.FILLED, buffers.ROOM)
    for value in list(graph.input):
        if value.name.startswith("cross_key."):
            heads = value.type.tensor_type.shape.dim[1].dim_value
            _fuse_cross_attention(graph, value.name.partition(".")[2], heads)
    _broadcast_biases(graph)
    # The search excludes tokens with an input that is the bias of the product for logits.
    (product,) = (node for node in graph.node if LOGITS in node.output)
    assert product.op_type == "Gemm"
    bias = buffers.ADDED
    if len(product.input) > 2:
        bias = f"{LOGITS}.bias"
        add = make_node("Add", [product.input[2], buffers.ADDED], [bias])
        graph.node.insert(list(graph.node).index(product), add)
    product.input[:] = [*product.input[:2], bias]
    (logits,) = (v for v in graph.output if v.name == LOGITS)
    tokens = int(logits.type.tensor_type.shape.dim[1].dim_value)
    graph.input.extend([
        make_tensor_value_info(buffers.FILLED, _INT32, ["batch"]),
        make_tensor_value_info(buffers.ROOM, _INT32, [1]),
        make_tensor_value_info(buffers.ADDED, _FLOAT, [tokens]),
    ])  # fmt: skip
    if any(v.name == "attention_mask" for v in graph.input):
        lengths = make_tensor_value_info(buffers.SOURCE_LENGTHS, _INT32, ["batch"])
        graph.input.append(lengths)
    _advance(graph)
    _drop_unread(graph)
    return made


def _fuse_cross_attention(graph: GraphProto, layer: str, heads: int) -> None:
    """Replace Reshape, Transpose, MatMul, Add, Softmax, MatMul, Reshape by one node."""
    nodes, key, value = graph.node, f"cross_key.{layer}", f"cross_value.{layer}"
    makes = {name: node for node in nodes for name in node.output}
    transpose = reader(nodes, key)
    scores = reader(nodes, transpose.output[0])
    masked = reader(nodes, scores.output[0])
    softmax = reader(nodes, masked.output[0])
    mix = next(n for n in nodes if n.op_type == "MatMul" and n.input[1] == value)
    divide, merge = makes[scores.input[0]], reader(nodes, mix.output[0])
    chain = [divide, transpose, scores, masked, softmax, mix, merge]
    kinds = "Reshape Transpose MatMul Add Softmax MatMul Reshape"
    assert [node.op_type for node in chain] == kinds.split()  # this package wrote the graph
    fused = make_node(
        "MultiHeadAttention",
        # Query, key, value, bias (the projections have theirs), and the keys' lengths.
        [divide.input[0], key, value, "", buffers.SOURCE_LENGTHS],
        [merge.output[0]],
        domain=CONTRIBUTED,
        num_heads=heads,
        scale=1.0,  # the query's weights are scaled already
    )
    replace_chain(graph, chain, fused)


def _broadcast_biases(graph: GraphProto) -> None:
    """Add the biases of layers without units without expanding them, since Add broadcasts."""
    stored = {x.name for x in graph.initializer}
    for node in [x for x in graph.node if x.op_type == "Expand" and x.input[0] in stored]:
        add = reader(graph.node, node.output[0])
        assert add.op_type == "Add"
        add.input[:] = [node.input[0] if x == node.output[0] else x for x in add.input]


def _advance(graph: GraphProto) -> None:
    """Output the next step's state, and store the best token in a table of all steps.

    All values written depend on the best token, so they are written after the old state was read:
    inputs and outputs share buffers.
    """
    for name, value in (("one", 1), ("first", [0]), ("axis", [1])):
        graph.initializer.append(from_array(np.array(value), f"state.{name}"))
    history, filled = buffers.HISTORY, buffers.FILLED
    graph.node.extend([
        # Ones [batch], which depend on the best token.
        make_node("Clip", [BEST, "state.one", "state.one"], ["state.ones"]),
        make_node("Gather", ["state.ones", "state.first"], ["state.step"], axis=0),
        make_node("Add", ["position", "state.step"], [buffers.after("position")]),
        make_node("Cast", ["state.ones"], ["state.steps"], to=_INT32),
        make_node("Add", [filled, "state.steps"], [buffers.after(filled)]),
        make_node("Cast", [buffers.after(filled)], ["state.columns"], to=_INT64),
        make_node("Unsqueeze", ["state.columns", "state.axis"], ["state.column"]),
        make_node("Unsqueeze", [BEST, "state.axis"], ["state.token"]),
        make_node(
            "ScatterElements", [history, "state.column", "state.token"],
            [buffers.after(history)], axis=1,
        ),
    ])  # fmt: skip
    table = ["batch", history]
    graph.input.append(make_tensor_value_info(history, _INT64, table))
    graph.output.extend([
        make_tensor_value_info(buffers.after("position"), _INT64, [1]),
        make_tensor_value_info(buffers.after(filled), _INT32, ["batch"]),
        make_tensor_value_info(buffers.after(history), _INT64, table),
    ])  # fmt: skip


def _drop_unread(graph: GraphProto) -> None:
    """Remove nodes, weights and inputs that nothing reads any more."""
    nodes, read = read_nodes(graph.node, [value.name for value in graph.output])
    del graph.node[:]
    graph.node.extend(nodes)
    for values in (graph.initializer, graph.input):
        for value in [x for x in values if x.name not in read]:
            values.remove(value)
    del graph.value_info[:]  # some of these values no longer exist


def write_helpers(step: Path, suffix: str) -> Mapping[str, str]:
    """Write the small graphs that a search needs in addition to a step of this form.

    `LENGTHEN` copies the caches into longer ones, whose position i is position `slots[i]`, and
    `TOP` computes the largest logits of each row and their normalizer.

    Returns:
        Role of each graph -> file name.
    """
    graph = onnx.load(step, load_external_data=False).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    past = {name: kind for name, kind in types.items() if name.startswith("past_")}
    lengthen = gather_graph(buffers.LENGTHEN, past, buffers.SLOTS, buffers.lengthened, axis=2)
    files = {}
    for role, made in ((buffers.LENGTHEN, lengthen), (buffers.TOP, _top(types[LOGITS]))):
        files[role] = f"{role}{suffix}"
        write_small_graph(made, step.with_name(files[role]))
    return files


def _top(kind: int) -> GraphProto:
    """Logits [rows, tokens] -> the `count` largest of each row and their tokens [rows, count], and
    the logarithm of the sum of all exponentials [rows, 1]."""
    values, tokens = buffers.TOP_VALUES, buffers.TOP_TOKENS
    return make_graph(
        [
            make_node("Cast", [LOGITS], ["whole"], to=_FLOAT),
            make_node("TopK", ["whole", buffers.COUNT], [values, tokens], axis=-1),
            make_node("ReduceLogSumExp", ["whole"], [buffers.NORMALIZER], axes=[-1], keepdims=1),
        ],
        buffers.TOP,
        [
            make_tensor_value_info(LOGITS, kind, [None, None]),
            make_tensor_value_info(buffers.COUNT, _INT64, [1]),
        ],
        [
            make_tensor_value_info(values, _FLOAT, [None, None]),
            make_tensor_value_info(tokens, _INT64, [None, None]),
            make_tensor_value_info(buffers.NORMALIZER, _FLOAT, [None, 1]),
        ],
    )
