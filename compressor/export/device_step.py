"""Decoder steps whose self-attention appends to its caches in place, instead of copying them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnx.helper import make_graph, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

from compressor.export.fp16 import LOGITS
from compressor.export.fused import fuse_norms
from compressor.export.graph_edit import CONTRIBUTED, GraphEdit
from compressor.export.translator_graphs import gather_graph, write_small_graph
from compressor.runtime import graph_names as buffers
from compressor.runtime.graph_names import BEST, CAPACITY

_FLOAT = TensorProto.FLOAT
_INT32 = TensorProto.INT32
_INT64 = TensorProto.INT64
_FILLED, _TOTAL = "caches.filled", "caches.total"  # positions before this step, and after it


def share_caches(model: ModelProto) -> None:
    """Rewrite a decoder step so that it appends to its caches in place.

    Other graphs stay as they are, and so do steps that `_fuse_self_attention` has no node for.

    Args:
        model: of `translator_graphs`, its products may be integer ones; it is changed.
    """
    if not _fuse_self_attention(model, _FILLED, _TOTAL):
        return
    # The filled positions of each row [batch], and after the step [1]: onnxruntime's `seqlens_k` is
    # the length after the step minus one, and `total_sequence_length`.
    one = from_array(np.array([1], np.int32), "caches.one")
    model.graph.initializer.append(one)
    nodes = [
        make_node("Cast", ["position"], ["caches.position"], to=_INT32),
        make_node("Add", ["caches.position", one.name], [_TOTAL]),
        make_node("Shape", ["input_ids"], ["caches.rows"], end=1),
        make_node("Expand", ["caches.position", "caches.rows"], [_FILLED]),
    ]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)


def _fuse_self_attention(model: ModelProto, filled: str, total: str) -> bool:
    """Replace the self-attention of every layer by one node.

    Args:
        model: it is changed.
        filled: value with the number of positions filled before the step, int32 [batch].
        total: value with a length of at least all rows' positions, int32 [1].

    Returns:
        False, without a change, if there are no heads, or what onnxruntime's node does not support:
        heads whose size is no multiple of 8, or that add a bias to their scores.
    """
    graph, nodes = model.graph, model.graph.node
    outputs = {value.name for value in graph.output}
    sizes = {  # of the keys of layers with heads, [batch, heads, past, head_dim]
        value.name.partition(".")[2]: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in graph.input
        if value.name.startswith("past_key.") and value.name.replace("past", "present") in outputs
    }
    if not sizes:
        return False
    for layer, (_, heads, _, head_dim) in sizes.items():
        makes = {name: node for node in nodes for name in node.output}
        keys, values = (makes[f"present_{part}.{layer}"] for part in ("key", "value"))
        transpose = _reader(nodes, keys.output[0])
        scores = _reader(nodes, transpose.output[0])
        softmax = _reader(nodes, scores.output[0])
        # The first layer stands for all: heads have one size, and all layers have a bias or none.
        if softmax.op_type == "Add" or head_dim % 8 != 0:
            return False
        split = makes[keys.input[1]]
        mix = _reader(nodes, values.output[0])
        chain = [makes[split.input[0]], split, keys, values, transpose, scores, softmax, mix]
        chain.append(_reader(nodes, mix.output[0]))
        assert mix.input[0] == softmax.output[0]
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
        kinds = "Reshape Split Concat Concat Transpose MatMul Softmax MatMul Reshape"
        _replace_chain(graph, chain, kinds, fused)
    # This name of the length signals to the runtime that the graph writes in place.
    for value in (*graph.input, *graph.output):
        if value.name.startswith(("past_", "present_")):
            value.type.tensor_type.shape.dim[2].dim_param = CAPACITY
    if CONTRIBUTED not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(make_opsetid(CONTRIBUTED, 1))
    return True


def _replace_chain(
    graph: GraphProto, chain: Sequence[NodeProto], kinds: str, fused: NodeProto
) -> None:
    """Replace nodes by one, at the place of the last: order is topological."""
    assert [node.op_type for node in chain] == kinds.split()  # this package wrote the graph
    graph.node.insert(list(graph.node).index(chain[-1]), fused)
    for node in chain:
        graph.node.remove(node)


def _reader(nodes: Sequence[NodeProto], value: str) -> NodeProto:
    """The only node that reads a value."""
    (node,) = (node for node in nodes if value in node.input)
    return node


def keep_state(model: ModelProto, directory: Path = Path()) -> ModelProto | None:
    """Rewrite a float32 decoder step so that its whole state stays on the device.

    Caches, token and position are the same buffers in every step, so a GPU can replay it as a CUDA
    graph: no node is on the CPU, or computes sizes. Cross-attention is one node too, with a mask in
    the form of `device_decoder.mask_of`.

    Args:
        model: the step, which stays as it is.
        directory: of its external data.

    Returns:
        The rewritten step; None for what `_fuse_self_attention` has no node for.
    """
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    if not _fuse_self_attention(made, buffers.FILLED, buffers.ROOM):
        return None
    for value in list(graph.input):
        if value.name.startswith("cross_key."):
            heads = value.type.tensor_type.shape.dim[1].dim_value
            _fuse_cross_attention(graph, value.name.partition(".")[2], heads)
    # Biases of layers without units are not expanded, since Add broadcasts.
    stored = {x.name for x in graph.initializer}
    for node in [x for x in graph.node if x.op_type == "Expand" and x.input[0] in stored]:
        add = _reader(graph.node, node.output[0])
        assert add.op_type == "Add"
        add.input[:] = [node.input[0] if x == node.output[0] else x for x in add.input]
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
    masks = {node.input[4] for node in graph.node if node.op_type == "MultiHeadAttention"}
    graph.input.extend(
        make_tensor_value_info(name, _INT32, [buffers.SOURCE_MASK]) for name in sorted(masks)
    )
    _advance(graph)
    # onnxruntime does the same, but not where the sum has other readers: in pre-norm layers.
    edit = GraphEdit(made, directory)
    fuse_norms(edit)
    made = edit.finish()
    nodes = made.graph.node
    read = {name for node in nodes for name in node.input}
    for value in [x for x in made.graph.input if x.name not in read]:
        made.graph.input.remove(value)
    return made


def _fuse_cross_attention(graph: GraphProto, layer: str, heads: int) -> None:
    """Replace the cross-attention of a layer by one node."""
    nodes = graph.node
    key = f"cross_key.{layer}"
    value = f"cross_value.{layer}"
    makes = {name: node for node in nodes for name in node.output}
    transpose = _reader(nodes, key)
    scores = _reader(nodes, transpose.output[0])
    masked = _reader(nodes, scores.output[0])
    softmax = _reader(nodes, masked.output[0])
    mix = next(n for n in nodes if n.op_type == "MatMul" and n.input[1] == value)
    divide, merge = makes[scores.input[0]], _reader(nodes, mix.output[0])
    chain = [divide, transpose, scores, masked, softmax, mix, merge]
    fused = make_node(
        "MultiHeadAttention",
        [divide.input[0], key, value, "", buffers.source_mask(heads)],
        [merge.output[0]],
        domain=CONTRIBUTED,
        num_heads=heads,
        scale=1.0,  # the query's weights are scaled already
    )
    kinds = "Reshape Transpose MatMul Add Softmax MatMul Reshape"
    _replace_chain(graph, chain, kinds, fused)


def _advance(graph: GraphProto) -> None:
    """Output the next step's state, and store the best token in a table of all steps.

    Buffers are shared: what is written depends on the best token, so the old state was read.
    """
    for name, value in (("one", 1), ("first", [0]), ("axis", [1])):
        graph.initializer.append(from_array(np.array(value), f"state.{name}"))
    history, filled = buffers.HISTORY, buffers.FILLED
    graph.node.extend([
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


def write_helpers(step: Path, suffix: str) -> Mapping[str, str]:
    """Write the small graphs that a search needs beside such a step.

    They are `LENGTHEN`, caches whose position i is that of `slots[i]`, and `TOP`, the largest
    logits of each row and their normalizer.

    Args:
        step: the graph's file.
        suffix: of the names of the new files.

    Returns:
        Role -> file name.
    """
    graph = onnx.load(step, load_external_data=False).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    past = {name: kind for name, kind in types.items() if name.startswith("past_")}
    # Logits [rows, tokens] -> the `count` largest of each row and their tokens [rows, count], and
    # the logarithm of the sum of all exponentials [rows, 1].
    values, tokens = buffers.TOP_VALUES, buffers.TOP_TOKENS
    top = make_graph(
        [
            make_node("Cast", [LOGITS], ["whole"], to=_FLOAT),
            make_node("TopK", ["whole", buffers.COUNT], [values, tokens], axis=-1),
            make_node("ReduceLogSumExp", ["whole"], [buffers.NORMALIZER], axes=[-1], keepdims=1),
        ],
        buffers.TOP,
        [
            make_tensor_value_info(LOGITS, types[LOGITS], [None, None]),
            make_tensor_value_info(buffers.COUNT, _INT64, [1]),
        ],
        [
            make_tensor_value_info(values, _FLOAT, [None, None]),
            make_tensor_value_info(tokens, _INT64, [None, None]),
            make_tensor_value_info(buffers.NORMALIZER, _FLOAT, [None, 1]),
        ],
    )
    lengthen = gather_graph(buffers.LENGTHEN, past, buffers.SLOTS, buffers.lengthened, axis=2)
    files = {}
    for role, made in ((buffers.LENGTHEN, lengthen), (buffers.TOP, top)):
        files[role] = f"{role}{suffix}"
        write_small_graph(made, step.with_name(files[role]))
    return files
