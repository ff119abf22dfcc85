"""One node per attention of an encoder's graph, each with its own number of heads.

The blocks are those of `compressor.export.attention`: one product for queries, keys and values,
scores, a mask, a softmax. onnxruntime's node uses the length of each row as mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from onnx import NodeProto

from compressor.errors import VerificationError
from compressor.export.graph_edit import CONTRIBUTED, GraphEdit, attribute, is_tensor_of

LENGTHS = "lengths"  # real tokens of each row, [batch] int32
MASK = "attention_mask"
_MASKING = ("Mul", "Sub", "Cast", "Unsqueeze")  # from the mask to the additive mask
_BY_HEADS = [0, 2, 1, 3]


@dataclass(frozen=True)
class AttentionBlock:
    """An attention, between its two products.

    Args:
        projected: queries, keys and values one after the other, [batch, tokens, 3 x width].
        bias: of that product, if it has one; `weight` and `hidden` are its factors.
        heads: number of heads.
        mixed: its result, [batch, tokens, width].
        last: the node that computes it.
        added: other terms of the scores than the mask, with two to four dimensions.
        rotated: tables of cosines and sines for rotating queries and keys.
    """

    hidden: str
    weight: str
    bias: str
    projected: str
    heads: int
    width: int
    mixed: str
    last: NodeProto
    added: list[str] = field(default_factory=list)
    rotated: tuple[str, str] | None = None


def find_blocks(edit: GraphEdit) -> list[AttentionBlock] | None:
    """All attentions of a graph; None if scores have products with positions (DeBERTa).

    Raises:
        VerificationError: one has an unknown form.
    """
    blocks = []
    for softmax in [node for node in edit.nodes if node.op_type == "Softmax"]:
        scores, added = _terms(edit, softmax.input[0])
        if any(node.op_type == "MatMul" for value in added for node in edit.ancestors(value)):
            return None
        blocks.append(_block(edit, softmax, scores, added))
    return blocks


def _terms(edit: GraphEdit, value: str) -> tuple[NodeProto, list[str]]:
    """The product of queries and keys among the terms of a sum, and the other terms."""
    products, others, waiting = [], [], [value]
    while waiting:
        term = waiting.pop()
        node = edit.makes[term]
        if node.op_type == "Add":
            waiting += node.input
        elif node.op_type == "MatMul":
            products.append(node)
        else:
            others.append(term)
    if len(products) != 1:
        _unknown(f"{len(products)} products are added to scores")
    return products[0], others


def _block(
    edit: GraphEdit, softmax: NodeProto, scores: NodeProto, added: list[str]
) -> AttentionBlock:
    masks = [value for value in added if _is_mask(edit, value)]
    if len(masks) != 1:
        _unknown(f"{len(masks)} masks are added to scores")
    query, key = scores.input
    transposed = edit.maker(key, "Transpose")
    rotated = None
    if transposed is not None and attribute(transposed, "perm") == [0, 1, 3, 2]:  # rotated
        query, *rotated = _unrotated(edit, query)
        key, *_ = _unrotated(edit, transposed.input[0])
    mix = edit.only_reader(softmax.output[0], "MatMul")
    if mix is None:
        _unknown("probabilities are read twice")
    merge = edit.only_reader(mix.output[0], "Transpose")
    last = edit.only_reader(merge.output[0], "Reshape") if merge is not None else None
    parts = [_part(edit, value) for value in (query, key, mix.input[1])]
    (split, _, heads, width), *_ = parts
    same = all(part[0] is split and part[1:] == (i, heads, width) for i, part in enumerate(parts))
    if last is None or not same:
        _unknown("queries, keys and values are not of one product")
    hidden, weight, bias = _product(edit, split.input[0])
    return AttentionBlock(
        hidden, weight, bias, split.input[0], heads, heads * width, last.output[0], last,
        [value for value in added if value not in masks],
        (rotated[0], rotated[1]) if rotated else None,
    )  # fmt: skip


def _is_mask(edit: GraphEdit, value: str) -> bool:
    while value != MASK:
        node = edit.maker(value, *_MASKING)
        if node is None:
            return False
        value = node.input[0]
    return True


def _part(edit: GraphEdit, value: str) -> tuple[NodeProto, int, int, int]:
    """The Split and the number of its output that is split into heads; heads, and their width."""
    transpose = edit.maker(value, "Transpose")
    reshape = edit.maker(transpose.input[0], "Reshape") if transpose is not None else None
    split = edit.maker(reshape.input[0], "Split") if reshape is not None else None
    if reshape is None or split is None:
        _unknown("queries, keys and values are not of one product")
    shape = edit.array(reshape.input[1])
    assert shape is not None  # this package wrote the graph
    _, _, heads, width = shape.tolist()
    return split, list(split.output).index(reshape.input[0]), heads, width


def _product(edit: GraphEdit, value: str) -> tuple[str, str, str]:
    """Factors and bias (or "") of a linear layer."""
    node = edit.makes[value]
    bias = ""
    if node.op_type == "Add":
        (bias,) = (name for name in node.input if name in edit.constants)
        (value,) = (name for name in node.input if name != bias)
        node = edit.makes[value]
    if node.op_type != "MatMul" or not is_tensor_of(edit.constants.get(node.input[1]), 2):
        _unknown("queries, keys and values are not of a product with weights")
    return node.input[0], node.input[1], bias


def _unrotated(edit: GraphEdit, value: str) -> tuple[str, str, str]:
    """The value before rotation, and the tables of cosines and sines, of half a head's width."""
    added = edit.maker(value, "Add")
    if added is None:
        _unknown("keys are neither split nor rotated")
    straight, crossed = (edit.makes[name] for name in added.input)
    base, cosines = straight.input
    return base, _table(edit, cosines), _table(edit, crossed.input[1])


def _table(edit: GraphEdit, value: str) -> str:
    while value not in edit.constants:
        value = edit.makes[value].input[0]
    return value


def _unknown(why: str) -> NoReturn:
    raise VerificationError(
        f"the exporter wrote an attention of an unknown form ({why}); please report this with the "
        "checkpoint's name, and leave fp16 out of --precision",
        id="attention-form-unknown",
    )


def replace_attention(edit: GraphEdit, block: AttentionBlock) -> None:
    """Replace a block by one node, with nodes for a rotation before it if needed."""
    bias = _score_bias(edit, block)
    more = {"domain": CONTRIBUTED, "num_heads": block.heads}
    if block.rotated is None:
        sizes = [block.width] * 3
        inputs = [block.hidden, block.weight, block.bias, LENGTHS, "", bias]
        node = edit.node(
            "Attention", inputs, [block.mixed], **more, qkv_hidden_sizes=sizes, scale=1.0
        )  # the query's weights are scaled already
        edit.replace([block.last], block.last, node)
        return
    query, key, value = (f"{block.mixed}.{part}" for part in ("query", "key", "value"))
    first = edit.constant("first_position", [0])
    split = edit.node("Split", [block.projected], [query, key, value], axis=-1, num_outputs=3)
    rotations = [
        edit.node("RotaryEmbedding", [x, first, *block.rotated], [f"{x}.rotated"], **more)
        for x in (query, key)
    ]
    inputs = [f"{query}.rotated", f"{key}.rotated", value, "", LENGTHS, bias]
    node = edit.node("MultiHeadAttention", inputs, [block.mixed], **more, scale=1.0)
    edit.replace([block.last], block.last, split, *rotations, node)


def _score_bias(edit: GraphEdit, block: AttentionBlock) -> str:
    """The bias of the scores, with four dimensions; "" for none."""
    if not block.added:
        return ""
    if len(block.added) > 1:
        _unknown(f"{len(block.added)} biases are added to scores")
    (value,) = block.added
    missing = 4 - edit.rank(value)
    if not missing:
        return value
    whole = f"{value}.of_heads"
    if whole not in edit.makes:
        axes = edit.constant(f"first_{missing}", list(range(missing)))
        maker = edit.makes[value]
        edit.replace([maker], maker, maker, edit.node("Unsqueeze", [value, axes], [whole]))
    return whole
