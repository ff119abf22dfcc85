"""Float32 graphs to int8 ones: weights stored as integers, activations quantized as they come.

Every product with stored weights becomes

    y = s_x s_w (Q(x) - z) W + bias,    W = round(weight / s_w) in -127 … 127,

with one scale s_w per output column and, for the activations, onnx's DynamicQuantizeLinear: 8 bits
unsigned, one scale s_x and zero point z for the whole tensor, computed anew in every run. Only
standard operators are used; onnxruntime fuses them when it loads the graph.

The table of token embeddings is stored as integers too, with one scale per token. A translator's
decoder multiplies by that same table to get its logits: there the integers are stored once, in the
product's layout, and an embedding is a column of them. A scale per token is a scale per output
column of the product, so both uses read the same numbers.

Everything else (attention between computed values, normalization, biases, positions) is float32.

x86 processors without VNNI multiply unsigned by signed bytes with an instruction that adds two
neighboring products in 16 bits, which saturates silently: 2 x 255 x 127 becomes 32,767. So a
column's scale is chosen such that no two neighboring weights, which are rows 2i and 2i + 1 of W,
add up to more than 128 in absolute value: 255 x 128 fits. That costs less precision than halving
all weights would (weights of a pair are seldom both large and of one sign), and the fastest kernels
give exact sums on every processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

LEVELS = 127  # -128 is left out, so that the range is symmetric
TOKENS = "input_ids"  # the input that embedding tables are indexed with
# Weights with fewer output columns than this (a classifier's labels) stay float32: they are small,
# and their rounding errors go straight into the logits.
NARROW = 16


def quantize_columns(
    weight: NDArray[np.float32], *, multiplied: bool = True
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers and the scale of each column: weight ~ integers x scales.

    Args:
        weight: [inputs, outputs].
        multiplied: whether the integers will be multiplied by bytes; if so, rows 2i and 2i + 1 of
            a column add up to at most 128 in absolute value.

    Returns:
        Integers [inputs, outputs] in -127 … 127, and scales [outputs]. A column of zeros has
        scale 1.
    """
    largest = np.abs(weight).max(axis=0)
    if multiplied:
        # Rounding adds at most a half to each of the two: a sum of 127 becomes 128 at most.
        pairs = np.abs(np.add.reduceat(weight, np.arange(0, len(weight), 2), axis=0))
        largest = np.maximum(largest, pairs.max(axis=0))
    scales = np.where(largest > 0, largest / LEVELS, 1).astype(np.float32)
    return np.clip(np.rint(weight / scales), -LEVELS, LEVELS).astype(np.int8), scales


def to_int8(model: ModelProto, directory: Path = Path()) -> ModelProto:
    """The graph with integer weights; its inputs and outputs stay what they are.

    Args:
        model: as `compressor.export.graphs` writes it.
        directory: where its external data lies, if it has any; read a weight at a time.
    """
    from onnx import ModelProto

    converted = ModelProto()
    converted.CopyFrom(model)
    _Quantizer(converted.graph, directory).run()
    return converted


class _Quantizer:
    """Rewrites the graph that it is given."""

    def __init__(self, graph: GraphProto, directory: Path) -> None:
        from onnx.numpy_helper import to_array

        self.graph = graph
        self.weights = {i.name: i for i in graph.initializer if len(i.dims) == 2}
        self.array: Callable[[str], NDArray[np.float32]] = lambda name: to_array(
            self.weights[name], str(directory)
        )
        self.stored: set[str] = set()  # names of the integers that are in the graph already

    def run(self) -> None:
        multiplied = {
            n.input[1]
            for n in self.graph.node
            if self._is_product(n) and _attribute(n, "transB", 0)
        }
        nodes: list[NodeProto] = []
        for node in self.graph.node:
            if self._is_product(node):
                nodes += self._product(node)
            elif self._is_lookup(node):
                nodes += self._lookup(node, shared=node.input[0] in multiplied)
            else:
                nodes.append(node)
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        used = {name for node in nodes for name in node.input}
        weights = self.graph.initializer
        for index in reversed(range(len(weights))):
            if weights[index].name not in used:
                del weights[index]
        # Some describe values that no longer exist; onnxruntime infers the others by itself.
        del self.graph.value_info[:]

    def _is_product(self, node: NodeProto) -> bool:
        if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in self.weights:
            return False
        if node.op_type == "Gemm" and (
            _attribute(node, "alpha", 1.0) != 1.0
            or _attribute(node, "transA", 0)
            or (len(node.input) > 2 and _attribute(node, "beta", 1.0) != 1.0)
        ):
            return False
        rows, columns = self.weights[node.input[1]].dims
        return (rows if _attribute(node, "transB", 0) else columns) >= NARROW

    def _is_lookup(self, node: NodeProto) -> bool:
        return (
            node.op_type == "Gather"
            and node.input[0] in self.weights
            and node.input[1] == TOKENS
            and _attribute(node, "axis", 0) == 0
        )

    def _store(self, name: str, *, transpose: bool, tokens_first: bool = False) -> tuple[str, str]:
        """Put a weight's integers and scales into the graph, once.

        Args:
            name: of a weight [rows, columns].
            transpose: one scale per row of the weight instead of one per column; the integers are
                stored as [columns, rows].
            tokens_first: with `transpose`, store the integers as [rows, columns] nevertheless: a
                table that is only looked up.

        Returns:
            Names of the integers and of the scales.
        """
        from onnx.numpy_helper import from_array

        layout = "rows" if tokens_first else "transposed" if transpose else "columns"
        integers, scales = f"{name}.{layout}.int8", f"{name}.{layout}.scale"
        if integers not in self.stored:
            weight = self.array(name)
            columns = weight.T if transpose else weight
            values, scale = quantize_columns(columns, multiplied=not tokens_first)
            values = np.ascontiguousarray(values.T if tokens_first else values)
            self.graph.initializer.extend([from_array(values, integers), from_array(scale, scales)])
            self.stored.add(integers)
        return integers, scales

    def _product(self, node: NodeProto) -> Iterator[NodeProto]:
        from onnx import TensorProto
        from onnx.helper import make_node

        transpose = bool(_attribute(node, "transB", 0))
        integers, scales = self._store(node.input[1], transpose=transpose)
        out = node.output[0]
        bias = node.input[2] if len(node.input) > 2 else None
        product = f"{out}.product" if bias else out
        quantized = [f"{out}.quantized", f"{out}.quantized_scale", f"{out}.quantized_zero"]
        yield make_node("DynamicQuantizeLinear", [node.input[0]], quantized)
        yield make_node("MatMulInteger", [quantized[0], integers, quantized[2]], [f"{out}.integer"])
        yield make_node("Cast", [f"{out}.integer"], [f"{out}.float"], to=TensorProto.FLOAT)
        yield make_node("Mul", [quantized[1], scales], [f"{out}.scale"])
        yield make_node("Mul", [f"{out}.float", f"{out}.scale"], [product])
        if bias:
            yield make_node("Add", [product, bias], [out])

    def _lookup(self, node: NodeProto, *, shared: bool) -> Iterator[NodeProto]:
        """Integers of the tokens times their scales.

        A table that a product shares has a column per token. One that is only looked up has a row
        per token, whose numbers are neighbors in memory.
        """
        from onnx import TensorProto
        from onnx.helper import make_node
        from onnx.numpy_helper import from_array

        out, (name, ids) = node.output[0], node.input
        axis = f"{out}.last_axis"
        self.graph.initializer.append(from_array(np.array([-1]), axis))
        integers, scales = self._store(name, transpose=True, tokens_first=not shared)
        looked_up = f"{out}.integer"
        if shared:
            # [width, vocabulary] at [batch, tokens] -> [width, batch, tokens]
            yield make_node("Gather", [integers, ids], [f"{out}.columns"], axis=1)
            yield make_node("Transpose", [f"{out}.columns"], [looked_up], perm=[1, 2, 0])
        else:
            yield make_node("Gather", [integers, ids], [looked_up], axis=0)
        # [batch, tokens, width]
        yield make_node("Cast", [looked_up], [f"{out}.float"], to=TensorProto.FLOAT)
        yield make_node("Gather", [scales, ids], [f"{out}.scales"], axis=0)
        yield make_node("Unsqueeze", [f"{out}.scales", axis], [f"{out}.scale"])
        yield make_node("Mul", [f"{out}.float", f"{out}.scale"], [out])


def _attribute(node: NodeProto, name: str, default: float) -> float:
    from onnx.helper import get_attribute_value

    values = [get_attribute_value(a) for a in node.attribute if a.name == name]
    return values[0] if values else default
