"""Attention of encoders as one node, for int8 graphs: ONNX's own `Attention` of operator set 23.

It takes queries, keys and values as they were projected, [batch, tokens, heads x head_dim], so that
the graph transposes nothing. Float32 graphs stay as they are, since OpenVINO opens them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, NodeProto

from compressor.export.graph_edit import GraphEdit, attribute

_OPERATORS = 23  # the first set of operators with `Attention`
_ROWS_OF_HEADS = [0, 2, 1, 3]  # from [batch, tokens, heads, head_dim], and back
_MASK = "attention_mask"
_MASKING = ("Mul", "Sub", "Cast", "Unsqueeze")  # from that input to the additive mask
_MASK_SHAPE, _WHOLE = "attention_node.mask_shape", "attention_node.mask"


@dataclass(frozen=True)
class _Block:
    """Nodes of an attention, and what they read."""

    nodes: list[NodeProto]  # in no order; the last of the graph is `last`
    last: NodeProto
    inputs: list[str]  # query, key and value, [batch, tokens, heads x head_dim] each
    mask: str  # additive, [batch, 1, 1, keys]
    heads: int
    one_query: bool


def with_attention_nodes(model: ModelProto, directory: Path = Path()) -> ModelProto:
    """Replace each attention whose scores are masked products, and nothing else, by one node.

    Others stay: with a bias or a rotation, with caches, and those whose probabilities are read.

    Args:
        model: in float32, of `compressor.export.attention`; it stays as it is.
        directory: of its external data.
    """
    edit = GraphEdit(model, directory)
    softmaxes = [node for node in edit.nodes if node.op_type == "Softmax"]
    blocks = [block for block in (_block(edit, x) for x in softmaxes) if block is not None]
    for block in blocks:
        # The operator broadcasts a mask over heads, not over queries.
        mask = block.mask if block.one_query else _whole_mask(edit, block.mask)
        node = edit.node(
            "Attention",
            [*block.inputs, mask],
            block.last.output,
            q_num_heads=block.heads,
            kv_num_heads=block.heads,
            scale=1.0,
        )
        edit.replace(block.nodes, block.last, node)
    made = edit.finish()
    for opset in made.opset_import:
        if blocks and opset.domain == "":
            opset.version = max(opset.version, _OPERATORS)
    return made


def _block(edit: GraphEdit, softmax: NodeProto) -> _Block | None:
    """The attention around a softmax; None if it computes anything else."""
    add = edit.maker(softmax.input[0], "Add")
    mix = edit.only_reader(softmax.output[0], "MatMul")
    merge = mix and edit.only_reader(mix.output[0], "Transpose")
    last = merge and edit.only_reader(merge.output[0], "Reshape")
    if add is None or mix is None or merge is None or last is None:
        return None
    scores = next((x for x in map(edit.makes.get, add.input) if x and x.op_type == "MatMul"), None)
    masks = [x for x in add.input if _is_mask(edit, x)]
    if scores is None or len(masks) != 1:
        return None
    query, key, value = (_split_off(edit, x) for x in (*scores.input, mix.input[1]))
    if query is None or key is None or value is None:
        return None
    shapes = [edit.array(reshape.input[1]) for _, reshape in (query, key, value)]
    sizes = [None if shape is None else shape.tolist() for shape in shapes]
    if sizes[0] is None or sizes[1:] != sizes[:1] * 2:
        return None
    inner = [query, key, value]
    nodes = [softmax, add, scores, mix, merge, last, *(node for pair in inner for node in pair)]
    sources = [reshape.input[0] for _, reshape in inner]
    # A query with a product of its own is that of the one token which the last layer computes.
    one_query = edit.maker(sources[0], "Split") is None
    return _Block(nodes, last, sources, masks[0], sizes[0][2], one_query)


def _split_off(edit: GraphEdit, value: str) -> tuple[NodeProto, NodeProto] | None:
    """The transposition and the reshape that made heads of projected states, [0, 0, heads, width].

    Keys may be transposed once more, or in the same node.
    """
    transpose = edit.maker(value, "Transpose")
    if transpose is None or attribute(transpose, "perm") not in (_ROWS_OF_HEADS, [0, 2, 3, 1]):
        return None
    reshape = edit.maker(transpose.input[0], "Reshape")
    return None if reshape is None else (transpose, reshape)


def _is_mask(edit: GraphEdit, value: str) -> bool:
    """Whether a value is made of the mask of tokens alone."""
    while value != _MASK:
        node = edit.maker(value, *_MASKING)
        if node is None:
            return False
        value = node.input[0]
    return True


def _whole_mask(edit: GraphEdit, mask: str) -> str:
    """The name of the mask with a row for each query, [batch, 1, queries, keys], made once."""
    if _WHOLE not in edit.makes:
        one = edit.constant("attention_node.one", [1])
        ones = edit.constant("attention_node.ones", [1, 1])
        tokens = f"{_MASK_SHAPE}.tokens"
        maker = edit.makes[mask]
        edit.replace(
            [maker],
            maker,
            maker,
            edit.node("Shape", [_MASK], [tokens], start=1, end=2),
            edit.node("Concat", [ones, tokens, one], [_MASK_SHAPE], axis=0),
            edit.node("Expand", [mask, _MASK_SHAPE], [_WHOLE]),
        )
    return _WHOLE
