"""Encoders' graphs for CUDA without computation on padding.

The layers of a fused graph (`compressor.export.fused`) process the concatenated real tokens of all
rows, [tokens, width]. The positions of tokens are inputs of the graph, since onnxruntime's own
operator for them uses one thread of the device, and synchronizes with the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, NodeProto, TensorProto
from onnx.helper import make_tensor_value_info

from compressor.export.fused_attention import LENGTHS
from compressor.export.graph_edit import CONTRIBUTED, GraphEdit, attribute, is_tensor_of
from compressor.runtime.fused_encoder import OFFSETS, STARTS, TOKENS

# Operators that process each token by itself, with shared weights.
_TOKENWISE = (
    "MatMul", "Add", "Mul", "Gelu", "Relu", "Tanh", "Sigmoid", "BiasGelu", "FastGelu",
    "LayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
)  # fmt: skip
_INPUTS = {TOKENS: ["tokens"], OFFSETS: ["batch", "source"], STARTS: ["starts"]}


def pack(fused: ModelProto) -> ModelProto | None:
    """The packed form of a fused graph in any precision; None without a fast kernel.

    onnxruntime has no kernel for packed attention with rotary positions or a bias of scores.
    """
    edit = GraphEdit(fused)
    attentions = [node for node in edit.nodes if node.op_type == "Attention"]
    rotated = any(node.op_type == "MultiHeadAttention" for node in edit.nodes)
    if not attentions or rotated or any(len(node.input) > 4 for node in attentions):
        return None
    entry = _entry(edit, attentions[0].input[0])
    if entry is None:
        return None
    _Packing(edit, entry).rewrite()
    model = edit.finish()
    read = {name for node in model.graph.node for name in node.input}
    inputs = [value for value in model.graph.input if value.name in read]
    inputs += [make_tensor_value_info(n, TensorProto.INT32, x) for n, x in _INPUTS.items()]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model


def _entry(edit: GraphEdit, hidden: str) -> str | None:
    """The value that all layers depend on: the embeddings.

    Args:
        hidden: input of the first attention.
    """
    within = {id(node) for node in edit.ancestors(hidden)}
    nodes = [node for node in edit.nodes if id(node) in within]
    for node in nodes:
        (value, *_) = node.output
        before = {id(x) for x in edit.ancestors(value)}
        after = [x for x in nodes if id(x) not in before]
        computed = {value, *(name for x in after for name in x.output)}
        known = all(n in computed or n in edit.constants or not n for x in after for n in x.input)
        inner = [x for x in nodes if id(x) in before and x is not node]
        read = (reader for x in inner for name in x.output for reader in edit.readers(name))
        if known and all(id(reader) in before for reader in read):
            return value
    return None


class _Packing:
    """Rewrites one graph after the embeddings."""

    def __init__(self, edit: GraphEdit, entry: str) -> None:
        self.edit, self.entry = edit, entry
        self.packed: dict[str, str] = {entry: f"{entry}.packed"}  # value -> its packed form
        self.nodes: list[NodeProto] = []
        self.restored = set[str]()

    def rewrite(self) -> None:
        edit, entry = self.edit, self.entry
        for node in edit.nodes:
            if self._stays_packed(node):
                for name in filter(None, node.output):
                    self.packed[name] = f"{name}.packed"
                self._pack(node)
            else:
                self._restore(node.input)
                self.nodes.append(node)
            if entry in node.output:
                flat = f"{entry}.flat"
                self.nodes.append(edit.node("Flatten", [entry], [flat], axis=2))
                self.nodes.append(edit.node("Gather", [flat, TOKENS], [self.packed[entry]], axis=0))
        self._restore(edit.outputs)
        edit.nodes = self.nodes

    def _stays_packed(self, node: NodeProto) -> bool:
        if node.op_type == "Attention":
            return True
        if node.op_type not in _TOKENWISE or not self.packed.keys() & set(node.input):
            return False
        weights = [name for name in node.input if name and name not in self.packed]
        tensors = [self.edit.constants.get(name) for name in weights]
        if node.op_type == "MatMul":
            return is_tensor_of(tensors[0] if tensors else None, 2)
        return all(tensor is not None and len(tensor.dims) <= 1 for tensor in tensors)

    def _pack(self, node: NodeProto) -> None:
        if node.op_type != "Attention":
            copied = NodeProto()
            copied.CopyFrom(node)
            copied.input[:] = [self.packed.get(name, name) for name in node.input]
            copied.output[:] = [self.packed.get(name, name) for name in node.output]
            self.nodes.append(copied)
            return
        hidden, weight, bias, lengths = node.input
        assert lengths == LENGTHS
        made, edit = self.packed[node.output[0]], self.edit
        parts = [f"{made}.{part}" for part in ("query", "key", "value")]
        options = {name: attribute(node, name) for name in ("num_heads", "scale")}
        self.nodes += [
            edit.node("MatMul", [self.packed[hidden], weight], [f"{made}.projected"]),
            edit.node("Split", [f"{made}.projected"], parts, axis=-1, num_outputs=3),
            edit.node(
                "PackedMultiHeadAttention", [*parts, bias, OFFSETS, STARTS], [made],
                domain=CONTRIBUTED, **options,
            ),
        ]  # fmt: skip

    def _restore(self, values: Iterable[str]) -> None:
        """Restore [batch, tokens, width] for nodes and outputs that need it."""
        for name in values:
            if name in self.packed and name != self.entry and name not in self.restored:
                self.restored.add(name)
                inputs = [self.packed[name], OFFSETS]
                restored = self.edit.node("RestorePadding", inputs, [name], domain=CONTRIBUTED)
                self.nodes.append(restored)
