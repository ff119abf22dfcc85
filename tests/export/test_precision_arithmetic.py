"""The arithmetic of int8 and fp16 graphs, on graphs of a node or two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from compressor.errors import InputError
from compressor.export import int8 as int8_module
from compressor.export.fp16 import to_fp16
from compressor.export.int8 import Observed, products, quantize_columns, to_int8
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import largest


def product(weight: np.ndarray, operator: str = "MatMul", **attributes) -> onnx.ModelProto:
    """y = x times the weight, plus 0, 1, 2, … as bias in a Gemm."""
    columns = weight.shape[0] if attributes.get("transB") else weight.shape[1]
    stored = [numpy_helper.from_array(weight, "weight")]
    inputs = ["x", "weight"]
    if operator == "Gemm":
        stored.append(numpy_helper.from_array(np.arange(columns, dtype=np.float32), "bias"))
        inputs.append("bias")
    sizes = (("x", weight.shape[attributes.get("transB", 0)]), ("y", columns))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", s]) for n, s in sizes)
    node = helper.make_node(operator, inputs, ["y"], **attributes)
    return model_of([node], [x], [y], stored)


def model_of(nodes: list, inputs: list, outputs: list, stored: list = ()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> np.ndarray:
    return session_of(model).run(None, feeds)[0]


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def fake_quantized(x: np.ndarray, weight: np.ndarray, ranged: bool) -> np.ndarray:
    """x times weight with both rounded, in double precision.

    Args:
        ranged: activations are rounded in their range, which is widened to hold 0, to 256 numbers;
            or else each row to 255, symmetric about 0.
    """
    if ranged:
        low, high = min(x.min(), 0.0), max(x.max(), 0.0)
        scale = (high - low) / 255
        zero = np.clip(np.rint(-low / scale), 0, 255)
        rounded = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale
    else:
        largest = np.abs(x).max(axis=-1, keepdims=True)
        rounded = np.rint(x / largest * 127) * largest / 127
    pairs = np.abs(weight[::2] + weight[1::2]).max(axis=0)
    step = np.maximum(np.abs(weight).max(axis=0), pairs) / 127
    return rounded.astype(np.float64) @ (np.rint(weight / step) * step)


@pytest.mark.parametrize("ranged", [True, False])
@pytest.mark.parametrize("operator", ["MatMul", "Gemm", "MatMul and Add"])
def test_a_product_is_that_of_the_rounded_numbers(operator: str, ranged: bool):
    """Expected values: NumPy, from the definition."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((48, 20)).astype(np.float32) * rng.uniform(0.1, 3, 20)
    weight = weight.astype(np.float32)
    x = (rng.standard_normal((7, 48)) * rng.uniform(0.1, 2, (7, 1))).astype(np.float32)
    ranges = {"x": (float(x.min()), float(x.max()))} if ranged else None
    expected = fake_quantized(x, weight, ranged)
    if operator == "Gemm":
        model = product(weight.T.copy(), "Gemm", transB=1)
        expected = expected + np.arange(20)
    else:
        model = product(weight)
    if operator == "MatMul and Add":
        model.graph.node[0].output[0] = "without bias"
        model.graph.node.append(helper.make_node("Add", ["bias", "without bias"], ["y"]))
        bias = np.arange(20, dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(bias, "bias"))
        expected = expected + bias
    converted = to_int8(model, ranges=ranges)
    if ranged:
        operators = [n.op_type for n in converted.graph.node]
        assert operators == ["QuantizeLinear", "MatMulIntegerToFloat"]
    actual = run(converted, x=x)
    np.testing.assert_allclose(actual, expected, atol=2e-5 * largest(expected))
    exact = x @ weight
    rounding = fake_quantized(x, weight, ranged) - exact
    assert 0 < largest(rounding) < 0.02 * largest(exact)  # so the numbers above really are rounded


def test_numbers_beyond_the_range_are_cut_to_it():
    weight = np.eye(16, dtype=np.float32)
    x = np.linspace(-4, 4, 16, dtype=np.float32)[None]
    actual = run(to_int8(product(weight), ranges={"x": (-1.0, 2.0)}), x=x)
    np.testing.assert_allclose(actual, np.clip(x, -1, 2), atol=0.01)


def test_a_range_of_zero_gives_zero():
    x = np.zeros((2, 16), np.float32)
    for ranges in ({"x": (0.0, 0.0)}, None):
        actual = run(to_int8(product(np.eye(16, dtype=np.float32)), ranges=ranges), x=x)
        np.testing.assert_array_equal(actual, 0)


@pytest.mark.parametrize("inputs", [1, 64, 771])
def test_no_pair_of_neighboring_products_overflows(inputs: int):
    """By plain onnxruntime, whose fastest kernels add two products in 16 bits on some processors.

    Columns are filled with what is largest: 127 beside 1, 64 beside 64, all of one sign. Expected
    values are exact sums in NumPy.
    """
    rng = np.random.default_rng(inputs)
    extremes = np.array([[127, 1], [1, 127], [64, 64], [-127, -1], [-64, -64], [127, -127]])
    columns = [np.resize(extremes[i % 6], inputs) for i in range(18)]
    mixed = [extremes[rng.integers(6, size=inputs)].reshape(-1)[:inputs] for _ in range(30)]
    real = np.array([*columns, *mixed]).T * rng.uniform(0.1, 9, 48)
    weight, _ = quantize_columns(real.astype(np.float32))
    assert np.abs(weight.astype(int)).max() == 127
    sizes = (("a", TensorProto.UINT8, inputs), ("y", TensorProto.INT32, 48))
    a, y = (helper.make_tensor_value_info(n, kind, ["rows", s]) for n, kind, s in sizes)
    node = helper.make_node("MatMulInteger", ["a", "weight"], ["y"])
    session = session_of(model_of([node], [a], [y], [numpy_helper.from_array(weight, "weight")]))
    for rows in (1, 2, 5, 16):
        bytes_ = rng.choice([0, 1, 254, 255], size=(rows, inputs)).astype(np.uint8)
        bytes_[0] = 255
        expected = bytes_.astype(np.int64) @ weight.astype(np.int64)
        np.testing.assert_array_equal(session.run(None, {"a": bytes_})[0], expected)


def test_only_looked_up_weights_keep_the_finer_scale():
    weight = np.array([[2, 2], [2, -2]], np.float32)
    integers, scales = quantize_columns(weight)
    np.testing.assert_array_equal(integers, [[64, 127], [64, -127]])  # 63.5 rounds to even
    np.testing.assert_allclose(scales, [4 / 127, 2 / 127])
    integers, _ = quantize_columns(weight, multiplied=False)
    np.testing.assert_array_equal(integers, [[127, 127], [127, -127]])


def test_what_cannot_be_quantized_is_left_alone():
    wide = np.ones((32, 32), np.float32)
    for model in (
        product(np.ones((32, int8_module.MIN_OUTPUTS - 1), np.float32)),
        product(wide, "Gemm", alpha=0.5),
        product(wide, "Gemm", beta=2.0),
        product(wide, "Gemm", transA=1),
    ):
        assert [n.op_type for n in to_int8(model).graph.node] == [model.graph.node[0].op_type]


@pytest.mark.parametrize(("outputs", "inputs"), [(20, 12), (12, 20)])
@pytest.mark.parametrize("transposed", [True, False])
def test_weights_of_few_output_columns_stay_as_they_are(
    outputs: int, inputs: int, transposed: bool
):
    """However many inputs they have: a classifier's labels are told apart by small differences."""
    weight = np.ones((inputs, outputs), np.float32)
    model = product(weight.T.copy(), "Gemm", transB=1) if transposed else product(weight)
    found = products(model.graph)
    assert {name: columns for name, (_, columns) in found.items()} == (
        {"y": 20} if outputs == 20 else {}
    )


@pytest.mark.parametrize("bias", [np.float32([0.5]), np.float32([[0.5] * 16]), np.float32(0.5)])
def test_what_is_added_but_no_bias_of_the_columns_is_added_after_the_product(bias: np.ndarray):
    """One number, which is repeated; a bias with two dimensions; a scalar."""
    model = product(np.eye(16, dtype=np.float32))
    model.graph.node[0].output[0] = "product"
    model.graph.node.append(helper.make_node("Add", ["product", "bias"], ["y"]))
    model.graph.initializer.append(numpy_helper.from_array(bias, "bias"))
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)
    converted = to_int8(model, ranges={"x": (-1.0, 1.0)})
    assert [node.op_type for node in converted.graph.node][-1] == "Add"
    np.testing.assert_allclose(run(converted, x=x), x + bias, atol=0.01)


def test_ranges_grow_with_every_batch(tmp_path: Path):
    """The product's inputs as NumPy has them; the answers stay, and no file is left."""
    weight = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    onnx.save(product(weight), tmp_path / "model.onnx")
    observed = Observed(tmp_path / "model.onnx")
    batches = [np.float32([[1, 2, 3, 4, 5, 6, 7, scale]]) for scale in (9, -3, 0.5)]
    seen = []
    for batch in batches:
        (answer,) = observed.run({"x": batch, "another": batch}).values()
        np.testing.assert_allclose(answer, batch @ weight, rtol=1e-5)
        seen.append(observed.ranges["x"])
    assert seen == [(1.0, 9.0), (-3.0, 9.0), (-3.0, 9.0)]
    assert observed.path == tmp_path / "model.onnx"
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_column_of_zeros_stays_zero():
    weight = np.zeros((4, 2), np.float32)
    weight[:, 1] = [-2, 1, 0.5, 0]
    integers, scales = quantize_columns(weight)
    np.testing.assert_array_equal(integers[:, 0], 0)
    np.testing.assert_array_equal(integers[:, 1], [-127, 64, 32, 0])  # 63.5 and 31.75 rounded
    np.testing.assert_allclose(scales, [1, 2 / 127])


def test_a_shared_table_gives_the_embeddings_that_its_product_multiplies_with():
    """Embedding and logits of a tied table against NumPy on the same integers."""
    rng = np.random.default_rng(2)
    table = rng.standard_normal((40, 24)).astype(np.float32)
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["rows", 1])
    outputs = [
        helper.make_tensor_value_info("embedded", TensorProto.FLOAT, ["rows", 1, 24]),
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 40]),
    ]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("Squeeze", ["embedded", "one"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "table"], ["logits"], transB=1),
    ]
    arrays = {"table": table, "one": np.array([1])}
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    model = model_of(nodes, [ids], outputs, stored)
    session = session_of(to_int8(model, ranges={"hidden": (-4.0, 4.0)}))
    rows = np.array([[3], [39], [0]])
    embedded, logits = session.run(None, {"input_ids": rows})
    integers, scales = quantize_columns(table.T)
    rounded = (integers * scales).T
    np.testing.assert_allclose(embedded[:, 0], rounded[rows[:, 0]], rtol=1e-6)
    hidden = np.vstack([rounded[rows[:, 0]], np.full((2, 24), [[-4.0], [4.0]])])  # the range
    expected = fake_quantized(hidden, table.T, ranged=True)[:3]
    np.testing.assert_allclose(logits, expected, atol=1e-4 * largest(expected))


def test_weights_beyond_half_precision_are_refused():
    with raises(InputError, "weight-too-large-for-fp16"):
        to_fp16(product(np.full((2, 2), 7e4, np.float32)))


def test_constants_inside_nodes_become_half_precision():
    """ConstantOfShape without a value means float32 zeros, by the standard."""
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node(
            "Constant", [], ["half"], value=numpy_helper.from_array(np.float32([0.5]))
        ),
        helper.make_node("Add", ["zeros", "half"], ["y"]),
    ]
    found = run(to_fp16(model_of(nodes, [shape], [y])), shape=np.array([3]))
    assert (found.dtype, found.tolist()) == (np.float16, [0.5, 0.5, 0.5])


def test_a_root_mean_square_beyond_half_precision_is_computed_in_float32():
    """T5's normalization of hidden states whose squares float16 cannot hold."""
    node, constant = helper.make_node, numpy_helper.from_array
    weight = np.linspace(0.5, 1.5, 16, dtype=np.float32)
    graph = helper.make_graph(
        [
            node("Pow", ["x", "two"], ["square"]),
            node("ReduceMean", ["square", "last"], ["mean"], keepdims=1),
            node("Add", ["mean", "epsilon"], ["sum"]),
            node("Sqrt", ["sum"], ["root"]),
            node("Reciprocal", ["root"], ["inverse"]),
            node("Mul", ["x", "inverse"], ["normal"]),
            node("Mul", ["weight", "normal"], ["y"]),
        ],
        "norm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 16])],
        [
            constant(np.array(2, np.float32), "two"),
            constant(np.array([-1]), "last"),
            constant(np.array(1e-6, np.float32), "epsilon"),
            constant(weight, "weight"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    values = np.random.default_rng(0).normal(size=(4, 16)) * [[0.01], [1], [2000], [9000]]
    half = values.astype(np.float16)
    session = onnxruntime.InferenceSession(to_fp16(model).SerializeToString())
    (found,) = session.run(None, {"x": half})
    exact = half.astype(np.float64)
    expected = weight * exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-6)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)
