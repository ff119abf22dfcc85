"""Float32 graphs to int8 ones: weights stored as integers, activations rounded at run time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnx.helper import make_node, make_tensor_value_info

from compressor.export.graph_edit import (
    CONTRIBUTED,
    GraphEdit,
    attribute,
    has_rank,
    stored_array,
)
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.runtime.batching import collate, in_chunks
from compressor.runtime.opening import read_artifact
from compressor.runtime.session import open_session
from compressor.runtime.text import Encoded
from compressor.tasks import TASKS, Example

Array = NDArray[Any]
Range = tuple[float, float]  # smallest and largest

LEVELS = 127  # -128 is left out, so that the range is symmetric
TOKENS = "input_ids"  # the input that embedding tables are indexed with
# Weights with fewer output columns (a classifier's labels) stay float32: their errors are logits'.
MIN_OUTPUTS = 16
MOST_ROWS, _BATCH_ROWS = 256, 32  # to observe ranges on, in all and at a time
_EXTREMES = ("ReduceMin", "ReduceMax")
_PANEL = 1 << 21  # values of a weight that are rounded at the same time
_LEAST = 1e-12  # scale of a token whose activations are all zero


def to_int8(
    model: ModelProto, directory: Path = Path(), ranges: Mapping[str, Range] | None = None
) -> ModelProto:
    """Store the weights of a graph as integers; its inputs and outputs do not change.

    Every product with stored weights becomes

    y = s_x s_w (Q(x) - z) W + bias,    W = round(weight / s_w) in -127 … 127,

    with one scale s_w per output column, and unsigned 8-bit activations Q(x). Their scale s_x and
    zero point z are constants where their ranges are known. Otherwise s_x is the largest absolute
    value of a token's activations over 127, and z is 128, which takes four more operations.

    The table of token embeddings is stored as integers, too, with one scale per token; a decoder
    that multiplies by the same table shares them.

    Args:
        model: in float32; it stays as it is.
        directory: of its external data, which is read a weight at a time.
        ranges: of the first inputs of all `products`, beyond which values are clipped.
    """
    return _Quantizer(model, directory, ranges).rewrite()


def products(graph: GraphProto) -> dict[str, tuple[NodeProto, int]]:
    """Find the products that `to_int8` replaces.

    Returns:
        Name of the result -> the product, and its number of output columns.
    """
    matrices = {tensor.name: tensor.dims for tensor in graph.initializer if len(tensor.dims) == 2}
    large = {}
    for node in graph.node:
        if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in matrices:
            continue
        if node.op_type == "Gemm" and (
            attribute(node, "alpha", 1.0) != 1.0
            or attribute(node, "transA", 0)
            or (len(node.input) > 2 and attribute(node, "beta", 1.0) != 1.0)
        ):
            continue
        rows, columns = matrices[node.input[1]]
        outputs = rows if attribute(node, "transB", 0) else columns
        if outputs >= MIN_OUTPUTS:
            large[node.output[0]] = node, outputs
    return large


def quantize_columns(
    weight: NDArray[np.float32], *, multiplied: bool = True
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round a weight to integers and the scale of each column: weight ~ integers x scales.

    x86 processors without VNNI add two neighboring products of unsigned and signed bytes in 16
    bits, and saturate silently: 2 x 255 x 127 becomes 32,767. So no two multiplied weights in rows
    2i and 2i + 1 add up to more than 128 in absolute value, since 255 x 128 fits.

    Args:
        weight: [inputs, outputs].
        multiplied: whether the integers are multiplied by bytes.

    Returns:
        Integers in -127 … 127, [inputs, outputs], and scales, [outputs].
    """
    inputs, outputs = weight.shape
    integers = np.empty_like(weight, np.int8)
    scales = np.empty(outputs, np.float32)
    at_once = max(1, _PANEL // inputs)  # columns: NumPy would copy the whole weight in each step
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


class _Quantizer(GraphEdit):
    """Replaces the nodes of a graph in their order.

    Args:
        model: stays as it is.
        directory: of its external data.
        ranges: of activations, by name; None: each token has a scale of its own.
    """

    def __init__(
        self, model: ModelProto, directory: Path, ranges: Mapping[str, Range] | None
    ) -> None:
        super().__init__(model, directory)
        self.ranges, self.products = ranges, products(model.graph)
        self.shared: set[str] = set()  # tables of embeddings that a product multiplies by too
        self.rounded: set[str] = set()  # activations whose integers are in the graph already

    def rewrite(self) -> ModelProto:
        lookups = {
            node.output[0]: node.input[0]
            for node in self.nodes
            if node.op_type == "Gather"
            and has_rank(self.constants.get(node.input[0]), 2)
            and node.input[1] == TOKENS
            and attribute(node, "axis", 0) == 0
        }
        transposed = [x for x, _ in self.products.values() if attribute(x, "transB", 0)]
        self.shared = {*lookups.values()} & {node.input[1] for node in transposed}
        biases = {}  # value of a product -> the node that adds a bias to it
        for value, (product, columns) in self.products.items():
            add = self.only_reader(value, "Add")
            if len(product.input) > 2 or add is None:  # a Gemm may already have its bias
                continue
            (bias,) = {*add.input} - {value}
            if self._is_vector(bias) and self.constants[bias].dims[0] == columns:
                biases[value] = add
        added = {add.output[0] for add in biases.values()}
        before, self.nodes = self.nodes, []
        for node in before:
            value = node.output[0]
            if value in self.products:
                self._multiply(node, biases.get(value))
            elif value in lookups:
                self._look_up(node)
            elif value not in added:
                self.nodes.append(node)
        return self.finish()

    def _is_vector(self, name: str) -> bool:
        return has_rank(self.constants.get(name), 1)

    def _add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        self.nodes.append(make_node(operator, inputs, [output], **attributes))

    def _store(self, name: str, *, transpose: bool, looked_up: bool = False) -> tuple[str, str]:
        """Add a weight's integers and scales to the graph, once.

        Args:
            name: of the weight, [rows, columns].
            transpose: one scale per row instead of one per column; integers are [columns, rows].
            looked_up: with `transpose`, integers are [rows, columns] nevertheless.

        Returns:
            Names of the integers and of the scales.
        """
        layout = "rows" if looked_up else "transposed" if transpose else "columns"
        integers, scales = f"{name}.{layout}.int8", f"{name}.{layout}.scale"
        if integers not in self.constants:
            weight = stored_array(self.constants[name], self.directory)
            # Rows that are only looked up need no limit for sums, and keep a finer scale.
            multiplied = not looked_up or name in self.shared
            columns = weight.T if transpose else weight
            values, scale = quantize_columns(columns, multiplied=multiplied)
            self.constant(integers, np.ascontiguousarray(values.T if looked_up else values))
            self.constant(scales, scale)
        return integers, scales

    def _multiply(self, node: NodeProto, add: NodeProto | None) -> None:
        """Write the integers' product in place of a node, and of an `add` of a bias to it."""
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
            self._add("Transpose", [rows], integers, perm=[1, 0])
        values, scale, zero, largest = self._round(x)
        # The last factor is the zero point of the weights, which are symmetric.
        factors = [values, integers, scale, scales, zero, ""]
        multiply = partial(self._add, "MatMulIntegerToFloat", domain=CONTRIBUTED)
        # The operator adds a bias of one dimension, after its scales; others need their own node.
        if not largest and all(map(self._is_vector, bias)):
            multiply([*factors, *bias], out)
            return
        product = f"{out}.product" if bias else out
        relative = f"{out}.relative" if largest else product
        multiply(factors, relative)
        if largest:
            self._add("Mul", [relative, largest], product)
        if bias:
            self._add("Add", [product, *bias], out)

    def _round(self, x: str) -> tuple[str, str, str, str]:
        """Names of integers, scale, zero and largest: x = (integers - zero) x scale x largest.

        `largest`, [..., 1], is empty with a range. Else tokens are divided by theirs, since
        MatMulIntegerToFloat has one scale for all rows of its first factor.
        """
        is_new = x not in self.rounded
        self.rounded.add(x)
        if self.ranges is not None:
            low, high = self.ranges[x]
            low, high = min(low, 0.0), max(high, 0.0)  # an integer must represent zero
            # If all values were zero the range is empty, and any scale but 0 works.
            step = (high - low) / 255 or 1.0
            scale = self.constant(f"{x}.scale", np.array(step, np.float32))
            integer = np.clip(np.rint(-low / step), 0, 255)
            zero = self.constant(f"{x}.zero", np.array(integer, np.uint8))
            if is_new:
                self._add("QuantizeLinear", [x, scale, zero], f"{x}.integers")
            return f"{x}.integers", scale, zero, ""
        least = self.constant("int8.least", np.array(_LEAST, np.float32))
        scale = self.constant("int8.scale", np.array(1 / LEVELS, np.float32))
        zero = self.constant("int8.zero", np.array(128, np.uint8))
        axis = self.constant("int8.last_axis", np.array([-1]))
        size, most, largest, relative, integers = (
            f"{x}.token_{name}" for name in ("size", "most", "largest", "relative", "integers")
        )
        if is_new:
            self._add("Abs", [x], size)
            self._add("ReduceMax", [size, axis], most, keepdims=1)
            self._add("Max", [most, least], largest)
            self._add("Div", [x, largest], relative)
            self._add("QuantizeLinear", [relative, scale, zero], integers)
        return integers, scale, zero, largest

    def _look_up(self, node: NodeProto) -> None:
        """Integers of the tokens times their scales."""
        out, (name, ids) = node.output[0], node.input
        axis = self.constant(f"{out}.last_axis", np.array([-1]))
        integers, scales = self._store(name, transpose=True, looked_up=True)
        self._add("Gather", [integers, ids], f"{out}.integer", axis=0)
        self._add("Cast", [f"{out}.integer"], f"{out}.float", to=TensorProto.FLOAT)
        self._add("Gather", [scales, ids], f"{out}.scales", axis=0)
        self._add("Unsqueeze", [f"{out}.scales", axis], f"{out}.scale")
        self._add("Mul", [f"{out}.float", f"{out}.scale"], out)


def activation_ranges(directory: Path, examples: Sequence[Example]) -> dict[str, dict[str, Range]]:
    """Observe the ranges of products' first inputs.

    Args:
        directory: an artifact with float32 graphs.
        examples: rows, of which at most `MOST_ROWS` are run, evenly spread, in batches of one
            length.

    Returns:
        The graph's file -> input of a product -> range.
    """
    artifact = read_artifact(directory)
    by_length: dict[int, list[Encoded]] = defaultdict(list)
    for example in examples[:: math.ceil(len(examples) / MOST_ROWS)]:
        by_length[len(example.source)].append(Encoded(example.source, example.types))
    batches = [
        collate(rows, artifact.pad_token_id, artifact.inputs)
        for _, rows_of_length in sorted(by_length.items())
        for rows in in_chunks(rows_of_length, _BATCH_ROWS)
    ]
    graphs = TASKS[artifact.task].graphs
    observed = graphs.observe(directory / GRAPH_DIRECTORY, artifact, batches)
    return {graph.path.name: graph.ranges for graph in observed if graph.ranges}


class Observed:
    """A session of a graph that records the ranges of its products' first inputs.

    Args:
        path: the graph's file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.ranges = path, dict[str, Range]()
        model = onnx.load(path, load_external_data=False)
        inputs = (node.input[0] for node, _ in products(model.graph).values())
        self.values = list(dict.fromkeys(inputs))
        # Extremes are computed in the graph, since the activations would need much memory.
        for value in self.values:
            for operator in _EXTREMES:
                name = f"{value} {operator}"
                model.graph.node.append(make_node(operator, [value], [name], keepdims=0))
                model.graph.output.append(make_tensor_value_info(name, TensorProto.FLOAT, []))
        extended = path.with_name(f"{path.stem}.observed.onnx")
        try:
            onnx.save_model(model, extended)
            self.session = open_session(extended)
        finally:
            extended.unlink(missing_ok=True)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run a batch.

        Args:
            feeds: values by name, of which those are taken that the graph reads.

        Returns:
            The graph's usual outputs.
        """
        read = {value.name: feeds[value.name] for value in self.session.get_inputs()}
        names = [value.name for value in self.session.get_outputs()]
        outputs = dict(zip(names, self.session.run(names, read), strict=True))
        for value in self.values:
            low, high = (float(outputs.pop(f"{value} {operator}")) for operator in _EXTREMES)
            before = self.ranges.get(value, (low, high))
            self.ranges[value] = min(low, before[0]), max(high, before[1])
        return outputs
