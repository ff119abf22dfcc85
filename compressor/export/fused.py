"""Encoders' graphs for CUDA: fused nodes, none of which the CPU computes, for CUDA graphs.

They are rewritten from float32 graphs of this package, whose forms are known and asserted. Each
attention has its own number of heads, and masks by the length of each row: padding is on the right.
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto

from compressor.export.fp16 import find_norms
from compressor.export.graph_edit import CONTRIBUTED, GraphEdit, attribute, has_rank

LENGTHS = "lengths"  # real tokens of each row, [batch] int32
# Those, and twice where rows begin if all are placed one behind the other, [3 x batch + 2] int32.
ROW_STARTS = "lengths_and_starts"
MASK = "attention_mask"
_MASKING = ("Mul", "Sub", "Cast", "Unsqueeze")  # from the mask to the additive mask
_POSITIONS = "places"  # 0, 1, 2, … [tokens] int64
_BROADCASTING = ("Add", "Sub", "Mul", "Div")
# Constants of the tanh approximation of Gelu, rounded -> the nodes that read them.
_TANH_GELU = {0.5: "Mul", 3.0: "Pow", 0.0447: "Mul", 0.7979: "Mul", 1.0: "Add"}


def fuse(model: ModelProto, directory: Path = Path()) -> ModelProto | None:
    """Make the graph of an encoder for CUDA, in float32.

    The embeddings' normalization stays a node of its own.

    Args:
        model: made by `encoder`; it stays as it is.
        directory: of its external data.

    Returns:
        The graph; None if its attention cannot be fused, or layers hand on fewer tokens: how many
            is computed on the CPU.
    """
    if any(node.op_type == "TopK" for node in model.graph.node):
        return None
    edit = GraphEdit(model, directory)
    one = edit.constant("axis_1", [1])
    edit.prepend(
        edit.node("ReduceSum", [MASK, one], [f"{LENGTHS}.int64"], keepdims=0),
        edit.node("Cast", [f"{LENGTHS}.int64"], [LENGTHS], to=TensorProto.INT32),
        *_row_starts(edit),
    )
    for softmax in [node for node in edit.nodes if node.op_type == "Softmax"]:
        products = []
        added = []
        terms = [softmax.input[0]]
        while terms:
            term = terms.pop()
            node = edit.makes[term]
            if node.op_type == "Add":
                terms += node.input
            elif node.op_type == "MatMul":
                products.append(node)
            else:
                added.append(term)
        # Scores with products of positions (DeBERTa).
        if any(node.op_type == "MatMul" for value in added for node in edit.ancestors(value)):
            return None
        (product,) = products
        if not _has_one_query(edit, softmax):
            _fuse_attention(edit, softmax, product, added)
    edit.drop_unread()
    _replace_shapes(edit)
    for node in list(edit.nodes):
        if node.op_type == "Gelu":
            linear = _linear(edit, node.input[0])
            if linear is not None and linear[1]:
                kind = "FastGelu" if attribute(node, "approximate") == b"tanh" else "BiasGelu"
                fused = edit.node(kind, linear, node.output, domain=CONTRIBUTED)
                edit.replace([node, edit.makes[node.input[0]]], node, fused)
        elif node.op_type == "Tanh":
            _fuse_tanh_gelu(edit, node)
    fuse_norms(edit)
    return edit.finish()


def _row_starts(edit: GraphEdit) -> list[NodeProto]:
    """The nodes for `ROW_STARTS`, which none reads where each attention adds a bias, say."""
    same, ones, sizes, ends, starts, whole = (f"{ROW_STARTS}.{number}" for number in range(6))
    zero, first = edit.constant("zero", 0), edit.constant("first_position", [0])
    return [
        edit.node("Equal", [MASK, MASK], [same]),
        edit.node("Cast", [same], [ones], to=TensorProto.INT64),
        edit.node("ReduceSum", [ones, edit.constant("axis_1", [1])], [sizes], keepdims=0),
        edit.node("CumSum", [sizes, zero], [ends]),
        edit.node("Concat", [first, ends], [starts], axis=0),
        edit.node("Concat", [f"{LENGTHS}.int64", starts, starts], [whole], axis=0),
        edit.node("Cast", [whole], [ROW_STARTS], to=TensorProto.INT32),
    ]


def _fuse_attention(
    edit: GraphEdit, softmax: NodeProto, scores: NodeProto, added: list[str]
) -> None:
    """Replace a block of `compressor.export.attention` by one node, and nodes for a rotation."""
    biases = [value for value in added if not _is_mask(edit, value)]
    assert len(added) == len(biases) + 1
    query, key = scores.input
    transposed = edit.maker(key, "Transpose")
    tables: list[str] = []  # of cosines and sines for rotating queries and keys
    if transposed is not None and attribute(transposed, "perm") == [0, 1, 3, 2]:
        query, *tables = _before_rotation(edit, query)
        key, *_ = _before_rotation(edit, transposed.input[0])
    mix = _only(edit.only_reader(softmax.output[0], "MatMul"))
    merge = _only(edit.only_reader(mix.output[0], "Transpose"))
    last = _only(edit.only_reader(merge.output[0], "Reshape"))
    parts = [_part(edit, value) for value in (query, key, mix.input[1])]
    (split, _, heads, head_dim), *_ = parts
    assert all(x[0] is split and x[1:] == (i, heads, head_dim) for i, x in enumerate(parts))
    (mixed,) = last.output  # [batch, tokens, width]
    bias = _score_bias(edit, biases)
    more = {"domain": CONTRIBUTED, "num_heads": heads}
    if not tables:
        linear = _linear(edit, split.input[0])
        assert linear is not None
        hidden, weight = edit.makes[linear[0]].input
        # By this form of mask onnxruntime chooses CUTLASS's kernel, by lengths alone cuDNN's, which
        # is planned for each new shape and number of heads (docs/gpu-guide.md). With what CUTLASS
        # does not support, a third kernel would misread it.
        mask = LENGTHS if bias or head_dim % 8 else ROW_STARTS
        inputs = [hidden, weight, linear[1], mask, "", bias]
        sizes = [heads * head_dim] * 3
        # The query's weights are scaled already.
        node = edit.node("Attention", inputs, [mixed], **more, qkv_hidden_sizes=sizes, scale=1.0)
        edit.replace([last], last, node)
        return
    query, key, value = (f"{mixed}.{part}" for part in ("query", "key", "value"))
    first = edit.constant("first_position", [0])
    split = edit.node("Split", [split.input[0]], [query, key, value], axis=-1, num_outputs=3)
    rotations = [
        edit.node("RotaryEmbedding", [x, first, *tables], [f"{x}.rotated"], **more)
        for x in (query, key)
    ]
    inputs = [f"{query}.rotated", f"{key}.rotated", value, "", LENGTHS, bias]
    node = edit.node("MultiHeadAttention", inputs, [mixed], **more, scale=1.0)
    edit.replace([last], last, split, *rotations, node)


def _has_one_query(edit: GraphEdit, softmax: NodeProto) -> bool:
    """Whether the layer computes one token alone: its query has a product of its own.

    The operators for whole attentions take as many queries as keys, and there is little to gain.
    """
    mix = _only(edit.only_reader(softmax.output[0], "MatMul"))
    split, *_ = _part(edit, mix.input[1])
    return len(split.output) == 2  # of keys and values


def _only(node: NodeProto | None) -> NodeProto:
    """The node, which exists: this package wrote the graph."""
    assert node is not None
    return node


def _is_mask(edit: GraphEdit, value: str) -> bool:
    """Whether a value is made of the mask alone."""
    while value != MASK:
        node = edit.maker(value, *_MASKING)
        if node is None:
            return False
        value = node.input[0]
    return True


def _part(edit: GraphEdit, value: str) -> tuple[NodeProto, int, int, int]:
    """Find how a query, key or value is split off.

    Returns:
        The `Split`, the number of its output, the number of heads, and their width.
    """
    transpose = _only(edit.maker(value, "Transpose"))
    reshape = _only(edit.maker(transpose.input[0], "Reshape"))
    split = _only(edit.maker(reshape.input[0], "Split"))
    shape = edit.array(reshape.input[1])
    assert shape is not None
    _, _, heads, width = shape.tolist()
    return split, list(split.output).index(reshape.input[0]), heads, width


def _before_rotation(edit: GraphEdit, value: str) -> tuple[str, str, str]:
    """The value before rotation, and the tables of cosines and sines, of half a head's width."""
    straight, crossed = (edit.makes[name] for name in _only(edit.maker(value, "Add")).input)
    tables = [straight.input[1], crossed.input[1]]
    for number, table in enumerate(tables):
        while table not in edit.constants:
            table = edit.makes[table].input[0]
        tables[number] = table
    return straight.input[0], *tables


def _score_bias(edit: GraphEdit, biases: list[str]) -> str:
    """The bias of the scores, with four dimensions; "" for none."""
    if not biases:
        return ""
    (value,) = biases
    missing = 4 - edit.ranks[value]
    whole = f"{value}.of_heads" if missing else value
    if whole not in edit.makes:
        axes = edit.constant(f"first_{missing}", list(range(missing)))
        maker = edit.makes[value]
        edit.replace([maker], maker, maker, edit.node("Unsqueeze", [value, axes], [whole]))
    return whole


def _replace_shapes(edit: GraphEdit) -> None:
    """Compute positions from the mask, since onnxruntime computes `Shape` and others on the CPU."""
    for node in list(edit.nodes):
        value = node.output[0]
        if node.op_type == "Range":
            start, limit, step = node.input
            if _numbers(edit, start, step) == [[0], [1]] and _is_length(edit, limit):
                edit.redirect_readers(value, _positions(edit))
        elif node.op_type == "Slice":  # the first rows, or columns, of a table
            table, start, end, axes, steps = [*node.input, "", ""][:5]
            first, axis, step = _numbers(edit, start, axes, steps)
            if (first, *_numbers(edit, end), step) in (([0], [1], [1]), ([0], [1], [])):
                _gather(edit, node, table, edit.constant("first_entry", [0]), axis[0])
            elif table in edit.constants and _is_length(edit, end) and (first, step) == ([0], [1]):
                _gather(edit, node, table, _positions(edit), axis[0])
        elif node.op_type == "Expand":  # before operators that broadcast
            readers = edit.readers(value)
            broadcast = all(reader.op_type in _BROADCASTING for reader in readers)
            if _is_length(edit, node.input[1]) and broadcast:
                edit.redirect_readers(value, node.input[0])
        elif node.op_type == "ConstantOfShape" and not node.attribute:
            # Zeros, which layers without units and without a bias return.
            for add in edit.readers(value):
                if add.op_type == "Add" and add.output[0] not in edit.outputs:
                    (other,) = (name for name in add.input if name != value)
                    edit.redirect_readers(add.output[0], other)
        elif node.op_type == "Reshape":  # of rows that were looked up by flattened indices
            rows = edit.maker(node.input[0], "Gather")
            flat = edit.maker(rows.input[1], "Reshape") if rows is not None else None
            if rows is None or flat is None or not _is_length(edit, node.input[1]):
                continue
            if _numbers(edit, flat.input[1]) == [[-1]] and attribute(rows, "axis", 0) == 0:
                _gather(edit, node, rows.input[0], flat.input[0])
        elif node.op_type == "GatherElements":  # of a table [1, length], expanded over the batch
            expand = edit.maker(node.input[0], "Expand")
            array = edit.array(expand.input[0]) if expand is not None else None
            if expand is not None and array is not None and array.shape[0] == 1 and array.ndim == 2:
                row = f"{expand.input[0]}.row"
                _gather(edit, node, edit.constant(row, array[0]), node.input[1])
        elif node.op_type == "GatherND":  # by indices with an additional dimension
            array = edit.array(node.input[0])
            indices = edit.maker(node.input[1], "Unsqueeze")
            if array is not None and array.ndim == 1 and indices is not None:
                _gather(edit, node, node.input[0], indices.input[0])
    edit.drop_unread()


def _gather(edit: GraphEdit, node: NodeProto, table: str, indices: str, axis: int = 0) -> None:
    edit.replace([node], node, edit.node("Gather", [table, indices], node.output, axis=axis))


def _is_length(edit: GraphEdit, value: str) -> bool:
    """Whether a value is computed from lengths alone."""
    return edit.maker(value, "Shape", "Concat", "Squeeze") is not None


def _numbers(edit: GraphEdit, *names: str) -> list[list[int]]:
    """The values of constants; empty for other values."""
    arrays = (edit.array(name) for name in names)
    return [[] if array is None else array.reshape(-1).tolist() for array in arrays]


def _positions(edit: GraphEdit) -> str:
    """The name of the positions, which are computed if missing."""
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


def _linear(edit: GraphEdit, value: str) -> tuple[str, str] | None:
    """Product and bias (or "") of a linear layer whose output only one node reads."""
    if len(edit.readers(value)) > 1 or value in edit.outputs:
        return None
    if edit.maker(value, "MatMul"):
        return value, ""
    add = edit.maker(value, "Add")
    if add is not None:
        for product, bias in (add.input, reversed(add.input)):
            if edit.maker(product, "MatMul") and has_rank(edit.constants.get(bias), 1):
                return product, bias
    return None


def _fuse_tanh_gelu(edit: GraphEdit, tanh: NodeProto) -> None:
    """Fuse `x / 2 (1 + tanh(0.798 (x + 0.0447 x^3)))`, as transformers writes it out."""
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


def fuse_norms(edit: GraphEdit) -> None:
    """Fuse each normalization with the residual sum before it, and the bias of its linear layer."""
    norms = [(node, [node]) for node in edit.nodes if node.op_type == "LayerNormalization"]
    for chain, _ in find_norms(edit.nodes, edit.constants, edit.directory):
        scale = edit.only_reader(chain[-1].output[0], "Mul")
        if scale is not None:
            norms.append((scale, [*chain, scale]))
    for last, nodes in norms:
        _fuse_norm(edit, last, nodes)


def _fuse_norm(edit: GraphEdit, last: NodeProto, nodes: list[NodeProto]) -> None:
    """Fuse a normalization, ending with `last`, with the residual sum before it and its bias."""
    add = edit.maker(nodes[0].input[0], "Add")
    pairs = [] if add is None else [(*add.input,), (*reversed(add.input),)]
    layers = ((_linear(edit, value), x) for value, x in pairs if x not in edit.constants)
    linear, residual = next((x for x in layers if x[0] is not None), (None, ""))
    if add is None or linear is None:
        return
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
