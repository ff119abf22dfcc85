"""Float32 graphs to int8 ones: weights stored as integers, activations rounded at run time.

Every product with stored weights becomes

    y = s_x s_w (Q(x) - z) W + bias,    W = round(weight / s_w) in -127 … 127,

with one scale s_w per output column, and unsigned 8-bit activations Q(x). Their scale s_x and zero
point z never depend on other rows of the batch, so neither does an output:

- if the range of the activations of real rows is known, they are constants that cover this range
  and zero; values beyond it are clipped;
- otherwise s_x is the largest absolute value of a token's activations over 127, and z is 128, which
  takes four more operations in every product.

onnxruntime computes the product, its scales and its bias in one node (MatMulIntegerToFloat, one of
its own operators; the others are standard).

The table of token embeddings is stored as integers too, with one scale per token, and contiguous
values of each token. A translator's decoder multiplies by the same table to compute logits: its
integers are stored once, and onnxruntime transposes them for the product when it opens the graph. A
scale per token is a scale per output column of the product, so both uses share them.

Everything else (attention between computed values, normalization, biases, positions) is float32.

x86 processors without VNNI multiply unsigned by signed bytes with an instruction that adds two
neighboring products in 16 bits, which saturates silently: 2 x 255 x 127 becomes 32,767. So a
column's scale is chosen such that no two neighboring weights, in rows 2i and 2i + 1 of W, add up to
more than 128 in absolute value: 255 x 128 fits. This costs less precision than halving all weights
(weights of a pair are seldom both large and of one sign), and the fastest kernels compute exact
sums on every processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnx.helper import make_node, make_opsetid
from onnx.numpy_helper import from_array

from compressor.export.graph_edit import CONTRIBUTED, attribute, readers_of, stored_array

Range = tuple[float, float]  # smallest and largest

LEVELS = 127  # -128 is left out, so that the range is symmetric
TOKENS = "input_ids"  # the input that embedding tables are indexed with
# Weights with fewer output columns than this (a classifier's labels) stay float32: they are small,
# and their rounding errors directly affect the logits.
MIN_OUTPUTS = 16
_PANEL = 1 << 21  # values of a weight that are rounded at the same time
_LEAST = 1e-12  # scale of a token whose activations are all zero


def quantize_columns(
    weight: NDArray[np.float32], *, multiplied: bool = True
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers and the scale of each column: weight ~ integers x scales.

    A few columns at a time: NumPy would copy the whole weight in each step.

    Args:
        weight: [inputs, outputs].
        multiplied: whether the integers are for products; if so, rows 2i and 2i + 1 of a column add
            up to at most 128 in absolute value.

    Returns:
        Integers [inputs, outputs] in -127 … 127, and scales [outputs]. A column of zeros has
        scale 1.
    """
    inputs, outputs = weight.shape
    integers = np.empty_like(weight, np.int8)
    scales = np.empty(outputs, np.float32)
    at_once = max(1, _PANEL // inputs)
    for panel in (slice(start, start + at_once) for start in range(0, outputs, at_once)):
        columns = weight[:, panel]  # [inputs, some outputs]
        largest = np.abs(columns).max(axis=0)
        if multiplied:
            # Rounding adds at most a half to each of the two: a sum of 127 becomes 128 at most.
            pairs = np.abs(np.add.reduceat(columns, np.arange(0, inputs, 2), axis=0))
            largest = np.maximum(largest, pairs.max(axis=0))
        scales[panel] = np.where(largest > 0, largest / LEVELS, 1)
        integers[:, panel] = np.clip(np.rint(columns / scales[panel]), -LEVELS, LEVELS)
    return integers, scales


def to_int8(
    model: ModelProto, directory: Path = Path(), ranges: Mapping[str, Range] | None = None
) -> ModelProto:
    """The graph with integer weights; its inputs and outputs do not change.

    Args:
        model: as `compressor.export.graphs` writes it.
        directory: of its external data, if it has any, which is read one weight at a time.
        ranges: of the first inputs of all `products`; without them each token has a scale.
    """
    converted = ModelProto()
    converted.CopyFrom(model)
    _Quantizer(converted.graph, directory, ranges).run()
    if products(model):
        # ONNX wants a version for every domain that operators are from.
        converted.opset_import.append(make_opsetid(CONTRIBUTED, 1))
    return converted


def products(model: ModelProto) -> list[NodeProto]:
    """The products with weights that `to_int8` replaces."""
    weights = _matrices(model.graph)
    return [node for node in model.graph.node if _is_product(node, weights)]


def _matrices(graph: GraphProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) == 2}


def _is_product(node: NodeProto, weights: Mapping[str, TensorProto]) -> bool:
    """Whether a node multiplies with stored weights that are large enough."""
    if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in weights:
        return False
    # The product of integers has no factors alpha and beta.
    if node.op_type == "Gemm" and (
        attribute(node, "alpha", 1.0) != 1.0
        or attribute(node, "transA", 0)
        or (len(node.input) > 2 and attribute(node, "beta", 1.0) != 1.0)
    ):
        return False
    return _output_columns(node, weights) >= MIN_OUTPUTS


def _output_columns(product: NodeProto, weights: Mapping[str, TensorProto]) -> int:
    rows, columns = weights[product.input[1]].dims
    return rows if attribute(product, "transB", 0) else columns


@dataclass(frozen=True)
class _Rounded:
    """Activations as integers.

    Args:
        nodes: that compute them.
        integers, scale, zero: names; the activations are (integers - zero) x scale.
        largest: name of their divisor before rounding, [..., 1]; empty without one.
    """

    nodes: Sequence[NodeProto]
    integers: str
    scale: str
    zero: str
    largest: str = ""


class _Quantizer:
    """Rewrites a graph in place."""

    def __init__(
        self, graph: GraphProto, directory: Path, ranges: Mapping[str, Range] | None
    ) -> None:
        self.graph, self.directory, self.ranges = graph, directory, ranges
        self.weights = _matrices(graph)
        self.vectors = {i.name: i.dims[0] for i in graph.initializer if len(i.dims) == 1}
        self.shared: set[str] = set()  # tables of embeddings that a product multiplies by too
        self.stored: set[str] = set()  # names of the constants that are in the graph already
        self.rounded: set[str] = set()  # activations whose integers are in the graph already

    def run(self) -> None:
        graph = self.graph
        multiplications = [node for node in graph.node if _is_product(node, self.weights)]
        transposed = {node.input[1] for node in multiplications if attribute(node, "transB", 0)}
        looked_up = {node.input[0] for node in graph.node if self._is_lookup(node)}
        self.shared = transposed & looked_up
        biases = self._biases(multiplications)
        added = {add.output[0] for add in biases.values()}
        nodes: list[NodeProto] = []
        for node in graph.node:
            if _is_product(node, self.weights):
                nodes += self._product(node, biases.get(node.output[0]))
            elif self._is_lookup(node):
                nodes += self._lookup(node)
            elif node.output[0] not in added:
                nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)
        used = {name for node in nodes for name in node.input}
        # From the end, since those behind a deleted one move up.
        for index in reversed(range(len(graph.initializer))):
            if graph.initializer[index].name not in used:
                del graph.initializer[index]
        # Some of these values no longer exist; onnxruntime infers the others by itself.
        del graph.value_info[:]

    def _biases(self, multiplications: Sequence[NodeProto]) -> dict[str, NodeProto]:
        """Value of a product -> the node that adds a bias to it."""
        readers = readers_of(self.graph.node)
        outputs = {value.name for value in self.graph.output}
        biases = {}
        for node in multiplications:
            value = node.output[0]
            read = readers.get(value, [])
            # A Gemm may already have its bias, and outputs of the graph do not change.
            if len(node.input) > 2 or value in outputs or [n.op_type for n in read] != ["Add"]:
                continue
            (bias,) = {*read[0].input} - {value}
            if self.vectors.get(bias) == _output_columns(node, self.weights):
                biases[value] = read[0]
        return biases

    def _is_lookup(self, node: NodeProto) -> bool:
        return (
            node.op_type == "Gather"
            and node.input[0] in self.weights
            and node.input[1] == TOKENS
            and attribute(node, "axis", 0) == 0
        )

    def _store(self, name: str, *, transpose: bool, looked_up: bool = False) -> tuple[str, str]:
        """Add the integers and scales of a weight [rows, columns] to the graph, once.

        Args:
            transpose: one scale per row of the weight instead of one per column; the integers are
                stored as [columns, rows].
            looked_up: with `transpose`, store the integers as [rows, columns].

        Returns:
            Names of the integers and of the scales.
        """
        layout = "rows" if looked_up else "transposed" if transpose else "columns"
        integers, scales = f"{name}.{layout}.int8", f"{name}.{layout}.scale"
        if integers not in self.stored:
            weight = stored_array(self.weights[name], self.directory)
            # Rows that are only looked up need no limit for sums, and keep a finer scale.
            multiplied = not looked_up or name in self.shared
            columns = weight.T if transpose else weight
            values, scale = quantize_columns(columns, multiplied=multiplied)
            self._constant(integers, np.ascontiguousarray(values.T if looked_up else values))
            self._constant(scales, scale)
        return integers, scales

    def _constant(self, name: str, values: NDArray) -> str:
        """Add a constant to the graph, once; returns its name."""
        if name not in self.stored:
            self.graph.initializer.append(from_array(values, name))
            self.stored.add(name)
        return name

    def _product(self, node: NodeProto, add: NodeProto | None) -> Iterator[NodeProto]:
        """The integers' product.

        Args:
            add: the node that adds a bias to it, which it replaces.
        """
        x, name, *bias = node.input
        out = node.output[0]
        if add is not None:
            bias = [other for other in add.input if other != out]
            out = add.output[0]
        transpose = bool(attribute(node, "transB", 0))
        shared = transpose and name in self.shared
        integers, scales = self._store(name, transpose=transpose, looked_up=shared)
        if shared:
            rows, integers = integers, f"{out}.weight"  # [tokens, width] -> [width, tokens]
            yield make_node("Transpose", [rows], [integers], perm=[1, 0])
        rounded = self._per_token(x) if self.ranges is None else self._fixed(x, *self.ranges[x])
        if x not in self.rounded:
            self.rounded.add(x)
            yield from rounded.nodes
        # The last factor is the zero point of the weights, which are symmetric.
        factors = [rounded.integers, integers, rounded.scale, scales, rounded.zero, ""]
        multiply = partial(make_node, "MatMulIntegerToFloat", domain=CONTRIBUTED)
        # The operator adds a bias of one dimension, after its scales; others need their own node.
        if not rounded.largest and all(name in self.vectors for name in bias):
            yield multiply([*factors, *bias], [out])
            return
        product = f"{out}.product" if bias else out
        relative = f"{out}.relative" if rounded.largest else product
        yield multiply(factors, [relative])
        if rounded.largest:
            yield make_node("Mul", [relative, rounded.largest], [product])
        if bias:
            yield make_node("Add", [product, *bias], [out])

    def _fixed(self, x: str, low: float, high: float) -> _Rounded:
        """Activations of a known range."""
        low, high = min(low, 0.0), max(high, 0.0)  # an integer must represent zero
        # If all values were zero the range is empty, and any scale but 0 works.
        step = (high - low) / 255 or 1.0
        scale = self._constant(f"{x}.scale", np.array(step, np.float32))
        integer = np.clip(np.rint(-low / step), 0, 255)
        zero = self._constant(f"{x}.zero", np.array(integer, np.uint8))
        integers = f"{x}.integers"
        nodes = [make_node("QuantizeLinear", [x, scale, zero], [integers])]
        return _Rounded(nodes, integers, scale, zero)

    def _per_token(self, x: str) -> _Rounded:
        """Activations divided by the largest of their token; the product is multiplied by it again.

        MatMulIntegerToFloat has one scale for all rows of its first factor.
        """
        least = self._constant("int8.least", np.array(_LEAST, np.float32))
        scale = self._constant("int8.scale", np.array(1 / LEVELS, np.float32))
        zero = self._constant("int8.zero", np.array(128, np.uint8))
        axis = self._constant("int8.last_axis", np.array([-1]))
        size, most, largest, relative, integers = (
            f"{x}.token_{name}" for name in ("size", "most", "largest", "relative", "integers")
        )
        nodes = [
            make_node("Abs", [x], [size]),
            make_node("ReduceMax", [size, axis], [most], keepdims=1),
            make_node("Max", [most, least], [largest]),
            make_node("Div", [x, largest], [relative]),
            make_node("QuantizeLinear", [relative, scale, zero], [integers]),
        ]
        return _Rounded(nodes, integers, scale, zero, largest)

    def _lookup(self, node: NodeProto) -> Iterator[NodeProto]:
        """Integers of the tokens times their scales."""
        out, (name, ids) = node.output[0], node.input
        axis = self._constant(f"{out}.last_axis", np.array([-1]))
        integers, scales = self._store(name, transpose=True, looked_up=True)
        # [batch, tokens, width]
        yield make_node("Gather", [integers, ids], [f"{out}.integer"], axis=0)
        yield make_node("Cast", [f"{out}.integer"], [f"{out}.float"], to=TensorProto.FLOAT)
        yield make_node("Gather", [scales, ids], [f"{out}.scales"], axis=0)
        yield make_node("Unsqueeze", [f"{out}.scales", axis], [f"{out}.scale"])
        yield make_node("Mul", [f"{out}.float", f"{out}.scale"], [out])
