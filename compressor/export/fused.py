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
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from compressor.export.fp16_normalization import find_norms
from compressor.export.fused_attention import LENGTHS, MASK, find_blocks, replace_attention
from compressor.export.graph_edit import CONTRIBUTED, GraphEdit, attribute, is_tensor_of
from compressor.export.lengths import without_shapes


def fuse(model: ModelProto, directory: Path = Path()) -> ModelProto | None:
    """The graph of an encoder for CUDA, in float32; None if its attention cannot be fused.

    Inputs, outputs and weights do not change.

    Args:
        model: as `compressor.export.graphs` writes it.
        directory: of its external data, if it has any.

    Raises:
        VerificationError: the graph has an unknown form.
    """
    copied = ModelProto()
    copied.CopyFrom(model)
    edit = GraphEdit(copied, directory)
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
    without_shapes(edit)
    _fuse_gelu(edit)
    _fuse_tanh_gelu(edit)
    _fuse_norms(edit)
    return edit.finish()


def _linear(edit: GraphEdit, value: str) -> tuple[str, str] | None:
    """Product and bias (or "") of a linear layer whose output only one node reads."""
    if len(edit.readers(value)) > 1 or value in edit.outputs:
        return None
    if edit.maker(value, "MatMul"):
        return value, ""
    add = edit.maker(value, "Add")
    if add is None:
        return None
    for product, bias in (add.input, reversed(add.input)):
        if edit.maker(product, "MatMul") and is_tensor_of(edit.constants.get(bias), 1):
            return product, bias
    return None


def _fuse_gelu(edit: GraphEdit) -> None:
    for node in [x for x in edit.nodes if x.op_type == "Gelu"]:
        linear = _linear(edit, node.input[0])
        if linear is None or not linear[1]:
            continue
        kind = "FastGelu" if attribute(node, "approximate") == b"tanh" else "BiasGelu"
        fused = edit.node(kind, linear, node.output, domain=CONTRIBUTED)
        edit.replace([node, edit.makes[node.input[0]]], node, fused)


def _fuse_tanh_gelu(edit: GraphEdit) -> None:
    """x / 2 (1 + tanh(0.798 (x + 0.0447 x^3))), as transformers writes it out."""
    for tanh in [x for x in edit.nodes if x.op_type == "Tanh"]:
        plus_one = edit.only_reader(tanh.output[0], "Add")
        product = edit.only_reader(plus_one.output[0], "Mul") if plus_one is not None else None
        if plus_one is None or product is None:
            continue
        (half,) = (name for name in product.input if name != plus_one.output[0])
        halved = edit.maker(half, "Mul")
        hidden = next((x for x in halved.input if x not in edit.constants), "") if halved else ""
        # The nodes of the formula: x^3, its factor, the sum, the scale, tanh, and both factors.
        between = [x for x in edit.ancestors(product.output[0]) if x.output[0] != hidden]
        inner = set(map(id, between)) - set(map(id, edit.ancestors(hidden)))
        nodes = [node for node in between if id(node) in inner]
        if _cubic(edit, nodes) == [0.5, 3.0, 0.0447, 0.7979, 1.0]:
            linear = _linear(edit, hidden)
            source = linear if linear is not None and linear[1] else (hidden,)
            fused = edit.node("FastGelu", source, product.output, domain=CONTRIBUTED)
            edit.replace(nodes, product, fused)


def _cubic(edit: GraphEdit, nodes: list[NodeProto]) -> list[float]:
    """The constants of these nodes, in the order of a tanh approximation's formula."""
    constants = {}
    for node in nodes:
        for name in node.input:
            value = edit.array(name)
            if value is not None and value.size == 1:
                constants[round(float(value.reshape(())), 4)] = node.op_type
    kinds = {0.5: "Mul", 3.0: "Pow", 0.0447: "Mul", 0.7979: "Mul", 1.0: "Add"}
    return list(kinds) if constants == kinds and len(nodes) == 8 else []


def _fuse_norms(edit: GraphEdit) -> None:
    """Fuse normalizations with the residual sum before them and its bias."""
    norms = [(node, [node]) for node in edit.nodes if node.op_type == "LayerNormalization"]
    for norm in find_norms(_current_graph(edit), edit.directory):
        scale = edit.only_reader(norm.nodes[-1].output[0], "Mul")
        if scale is not None:
            norms.append((scale, [*(edit.makes[x.output[0]] for x in norm.nodes), scale]))
    for last, nodes in norms:
        hidden = nodes[0].input[0]
        add = edit.maker(hidden, "Add")
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
    hidden = add.output[0]
    product, bias = linear
    if len(nodes) == 1:
        kind, epsilon = "SkipLayerNormalization", attribute(last, "epsilon", 1e-5)
        weights = [*last.input[1:], ""][:2]  # some have no bias
    else:
        kind = "SkipSimplifiedLayerNormalization"
        (weight,) = (name for name in last.input if name in edit.constants)
        (added,) = (edit.array(x) for node in nodes for x in node.input
                    if node.op_type == "Add" and x in edit.constants)  # fmt: skip
        weights, epsilon = [weight], float(np.asarray(added).reshape(()))
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


def _current_graph(edit: GraphEdit) -> GraphProto:
    """The graph in its current state."""
    graph = GraphProto()
    graph.node.extend(edit.nodes)
    graph.initializer.extend(edit.constants.values())
    return graph
