"""One node per attention of an encoder's graph, each with its own number of heads.

The blocks are those of `compressor.export.attention`: one product for queries, keys and values,
scores, a mask, a softmax. onnxruntime's node uses the length of each row as mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from onnx import NodeProto

from compressor.errors import VerificationError
from compressor.export.graph_edit import CONTRIBUTED, GraphEdit, attribute, is_tensor_of

LENGTHS = "lengths"  # real tokens of each row, [batch] int32
MASK = "attention_mask"
_MASKING = ("Mul", "Sub", "Cast", "Unsqueeze")  # from the mask to the additive mask


@dataclass(frozen=True)
class AttentionBlock:
    """An attention, between its two products.

    Args:
        hidden, weight, bias: factors of its input product, and its bias or "".
        projected: queries, keys and values one after the other, [batch, tokens, 3 x width].
        last: the node that computes its result, [batch, tokens, width].
        added: other terms of the scores than the mask, with two to four dimensions.
        rotated: tables of cosines and sines for rotating queries and keys; empty without rotation.
    """

    hidden: str
    weight: str
    bias: str
    projected: str
    heads: int
    width: int
    last: NodeProto
    added: list[str]
    rotated: list[str]


def find_blocks(edit: GraphEdit) -> list[AttentionBlock] | None:
    """All attentions of a graph; None if scores have products with positions (DeBERTa).

    Raises:
        VerificationError: one has an unknown form.
    """
    blocks = []
    for softmax in [node for node in edit.nodes if node.op_type == "Softmax"]:
        products, added, terms = [], [], [softmax.input[0]]
        while terms:
            term = terms.pop()
            node = edit.makes[term]
            if node.op_type == "Add":
                terms += node.input
            elif node.op_type == "MatMul":
                products.append(node)
            else:
                added.append(term)
        if len(products) != 1:
            _unknown(f"{len(products)} products are added to scores")
        if any(node.op_type == "MatMul" for value in added for node in edit.ancestors(value)):
            return None
        blocks.append(_block(edit, softmax, products[0], added))
    return blocks


def _block(
    edit: GraphEdit, softmax: NodeProto, scores: NodeProto, added: list[str]
) -> AttentionBlock:
    masks = [value for value in added if _is_mask(edit, value)]
    if len(masks) != 1:
        _unknown(f"{len(masks)} masks are added to scores")
    query, key = scores.input
    transposed = edit.maker(key, "Transpose")
    rotated: list[str] = []
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
    projected, bias = split.input[0], ""
    product = edit.makes[projected]
    if product.op_type == "Add":
        (bias,) = (name for name in product.input if name in edit.constants)
        (value,) = (name for name in product.input if name != bias)
        product = edit.makes[value]
    if product.op_type != "MatMul" or not is_tensor_of(edit.constants.get(product.input[1]), 2):
        _unknown("queries, keys and values are not of a product with weights")
    hidden, weight = product.input
    others = [value for value in added if value not in masks]
    return AttentionBlock(
        hidden, weight, bias, projected, heads, heads * width, last, others, rotated
    )


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


def _unrotated(edit: GraphEdit, value: str) -> tuple[str, str, str]:
    """The value before rotation, and the tables of cosines and sines, of half a head's width."""
    added = edit.maker(value, "Add")
    if added is None:
        _unknown("keys are neither split nor rotated")
    straight, crossed = (edit.makes[name] for name in added.input)
    tables = [straight.input[1], crossed.input[1]]
    for number, table in enumerate(tables):
        while table not in edit.constants:
            table = edit.makes[table].input[0]
        tables[number] = table
    return straight.input[0], *tables


def _unknown(why: str) -> NoReturn:
    raise VerificationError(
        f"the exporter wrote an attention of an unknown form ({why}); please report this with the "
        "checkpoint's name, and leave fp16 out of --precision",
        id="attention-form-unknown",
    )


def replace_attention(edit: GraphEdit, block: AttentionBlock) -> None:
    """Replace a block by one node, with nodes for a rotation before it if needed."""
    bias = _score_bias(edit, block.added)
    more = {"domain": CONTRIBUTED, "num_heads": block.heads}
    (mixed,) = block.last.output
    if not block.rotated:
        sizes = [block.width] * 3
        inputs = [block.hidden, block.weight, block.bias, LENGTHS, "", bias]
        node = edit.node(
            "Attention", inputs, [mixed], **more, qkv_hidden_sizes=sizes, scale=1.0
        )  # the query's weights are scaled already
        edit.replace([block.last], block.last, node)
        return
    query, key, value = (f"{mixed}.{part}" for part in ("query", "key", "value"))
    first = edit.constant("first_position", [0])
    split = edit.node("Split", [block.projected], [query, key, value], axis=-1, num_outputs=3)
    rotations = [
        edit.node("RotaryEmbedding", [x, first, *block.rotated], [f"{x}.rotated"], **more)
        for x in (query, key)
    ]
    inputs = [f"{query}.rotated", f"{key}.rotated", value, "", LENGTHS, bias]
    node = edit.node("MultiHeadAttention", inputs, [mixed], **more, scale=1.0)
    edit.replace([block.last], block.last, split, *rotations, node)


def _score_bias(edit: GraphEdit, added: list[str]) -> str:
    """The bias of the scores, with four dimensions; "" for none."""
    if not added:
        return ""
    if len(added) > 1:
        _unknown(f"{len(added)} biases are added to scores")
    (value,) = added
    missing = 4 - edit.ranks[value]
    if not missing:
        return value
    whole = f"{value}.of_heads"
    if whole not in edit.makes:
        axes = edit.constant(f"first_{missing}", list(range(missing)))
        maker = edit.makes[value]
        edit.replace([maker], maker, maker, edit.node("Unsqueeze", [value, axes], [whole]))
    return whole
