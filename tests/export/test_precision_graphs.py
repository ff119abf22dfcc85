"""int8 and fp16 graphs: every architecture, uneven and empty layers, and the arithmetic itself."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from compressor.errors import InputError, VerificationError
from compressor.export import graph_bytes
from compressor.export import int8 as int8_module
from compressor.export.activation_ranges import activation_ranges
from compressor.export.fp16 import to_fp16
from compressor.export.half_range import LargestValue, range_check
from compressor.export.int8 import products, quantize_columns, to_int8
from compressor.export.precisions import add_precision, require_within, set_default
from compressor.results import HALF_RANGE
from compressor.runtime import Classifier, Translator
from compressor.runtime.artifact import read_artifact
from compressor.tasks import Example
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import Exported, export, new_directory, write_hashes
from tests.helpers.tiny import BUILDERS, TRANSLATORS, ragged_batch, tiny_model, uneven_mask

pytestmark = pytest.mark.slow

# Of the largest logit, on batches that the export did not see. What was measured on these models
# is 0.002 to 0.09 in int8 and 0.0008 to 0.0025 in fp16; wrong heads are off by 0.3 and more.
TOLERANCE = {"int8": 0.15, "fp16": 0.01}
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


@cache
def exported(name: str) -> Exported:
    """A model with a different head count in every layer, none in the last, in all precisions."""
    directory = new_directory()
    build = toy.translator if name in TRANSLATORS else toy.classifier
    made = export(build(directory / "dense", name), uneven_mask, directory / "out")
    batch = inputs(made, rows=2, seed=7)
    batch.pop("decoder_input_ids", None)
    for precision in ("int8", "fp16"):
        rows = examples(made) if precision == "int8" else []
        checks = add_precision(made.model, [batch], made.directory, precision, examples=rows)
        require_within(checks, precision)
        assert "PyTorch's" in checks[0].detail
        assert "CPUExecutionProvider" in checks[0].detail
        assert [check.name for check in checks[1:]] == ([HALF_RANGE] if precision == "fp16" else [])
    write_hashes(made.directory)
    return made


def examples(made: Exported) -> list[Example]:
    """Encoded rows of several lengths, among them all that `inputs` makes."""
    found = []
    for seed in range(8):
        batch = ragged_batch(made.model, rows=5, seed=seed)
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            found.append(Example(len(found), tuple(ids[mask.bool()].tolist()), (0,)))
    return found


def inputs(made: Exported, rows: int, seed: int) -> dict[str, torch.Tensor]:
    """A ragged batch with all that the model reads."""
    batch = ragged_batch(made.model, rows, seed)
    if "token_type_ids" in read_artifact(made.directory).inputs:
        batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    return batch


def graphs(made: Exported, precision: str) -> dict[str, onnx.ModelProto]:
    files = read_artifact(made.directory).precisions[precision]
    return {role: onnx.load(made.directory / "onnx" / file) for role, file in files.items()}


def largest(values: np.ndarray) -> float:
    return float(np.abs(values).max())


@pytest.mark.parametrize("precision", ["int8", "fp16"])
@pytest.mark.parametrize("name", BUILDERS)
def test_answers_stay_near_pytorchs(name: str, precision: str):
    made = exported(name)
    batch = inputs(made, rows=5, seed=1)
    with torch.no_grad():
        expected = made.model(**batch).logits.numpy()
    arrays = {key: value.numpy() for key, value in batch.items()}
    if name in TRANSLATORS:
        translator = Translator(made.directory, precision=precision, threads=1)
        actual = translator.teacher_forced(arrays, arrays["decoder_input_ids"])
        assert all(translator.generate(arrays, num_beams=2))
    else:
        classifier = Classifier(made.directory, precision=precision, threads=1)
        actual = classifier.run(arrays)
    assert largest(actual - expected) < TOLERANCE[precision] * largest(expected)


@pytest.mark.parametrize("precision", ["int8", "fp16"])
@pytest.mark.parametrize("name", BUILDERS)
def test_graphs_have_the_right_heads_and_element_types(name: str, precision: str):
    made = exported(name)
    plain = graphs(made, "fp32")
    for role, model in graphs(made, precision).items():
        heads = [
            [value.type.tensor_type.shape.dim[1].dim_value for value in found.graph.input
             if value.name.startswith(("past_", "cross_"))]
            for found in (model, plain[role])
        ]  # fmt: skip
        assert heads[0] == heads[1]
        sizes = {i.name: (list(i.dims), i.data_type) for i in model.graph.initializer}
        if precision == "fp16":
            assert all(kind != TensorProto.FLOAT for _, kind in sizes.values())
        else:
            # Left in float32: positions, token types, biases, and the labels' few columns.
            wide = [
                (key, dims)
                for key, (dims, kind) in sizes.items()
                if kind in FLOATS and len(dims) == 2 and min(dims) >= 16 and "position" not in key
            ]
            assert not wide
    assert graph_bytes(made.directory, precision) < graph_bytes(made.directory)


def test_a_translator_keeps_its_tied_matrix_once():
    made = exported("marian")
    assert made.model.lm_head.weight is made.model.get_decoder().embed_tokens.weight
    vocabulary, width = made.model.lm_head.weight.shape
    decoder = graphs(made, "int8")["decoder"]
    table = [i for i in decoder.graph.initializer if vocabulary * width == np.prod(i.dims)]
    assert [i.data_type for i in table] == [TensorProto.INT8]
    users = [node.op_type for node in decoder.graph.node if table[0].name in node.input]
    assert sorted(users) == ["Gather", "MatMulIntegerToFloat"]
    encoder = graphs(made, "int8")["encoder"]
    assert all(
        i.data_type == TensorProto.INT8
        for i in encoder.graph.initializer
        if np.prod(i.dims) == vocabulary * width
    )


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
    graph = helper.make_graph([node], "product", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> np.ndarray:
    return session_of(model).run(None, feeds)[0]


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


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
        assert [n.op_type for n in converted.graph.node] == [
            "QuantizeLinear",
            "MatMulIntegerToFloat",
        ]
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


@pytest.mark.parametrize("ranged", [True, False])
@pytest.mark.parametrize("name", BUILDERS)
def test_an_answer_depends_on_its_own_row_alone(name: str, ranged: bool, tmp_path):
    """A row alone, beside others, and padded, though one of them has activations of its own."""
    made = exported(name)
    if not ranged:
        made = copy_of(made, tmp_path)
        add_precision(made.model, [inputs(made, rows=2, seed=7)], made.directory, "int8")
        write_hashes(made.directory)
    arrays = {key: value.numpy() for key, value in inputs(made, rows=6, seed=2).items()}
    tokens = arrays.pop("decoder_input_ids", None)

    def answer(rows: list[int]) -> np.ndarray:
        batch = {key: value[rows] for key, value in arrays.items()}
        if tokens is None:
            return Classifier(made.directory, precision="int8", threads=1).run(batch)
        translator = Translator(made.directory, precision="int8", threads=1)
        return translator.teacher_forced(batch, tokens[rows])

    together = answer(list(range(6)))
    for row in range(6):
        np.testing.assert_allclose(answer([row])[0], together[row], atol=1e-4 * largest(together))


def test_ranges_are_those_of_the_models_own_activations():
    """Of the classifier's feed-forward inputs, against hooks on the network, without padding."""
    made = exported("bert")
    rows = examples(made)
    seen: dict[str, list[float]] = {}
    layer = made.model.bert.encoder.layer[0].attention.self.query

    def note(module, inputs, output):
        seen.setdefault("x", []).extend([inputs[0].min().item(), inputs[0].max().item()])

    handle = layer.register_forward_hook(note)
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor([row.source])
            made.model(ids, torch.ones_like(ids), torch.zeros_like(ids))
    handle.remove()
    (found,) = activation_ranges(made.directory, rows, products).values()
    expected = min(seen["x"]), max(seen["x"])
    assert any(value == pytest.approx(expected, rel=1e-5) for value in found.values())


def test_sums_of_large_products_do_not_saturate():
    """On x86 without VNNI, 8-bit products are added in pairs into 16 bits, which hold 32,767.

    All activations here quantize to 255 and half the weights to 127: pairs reach 64,770. Expected
    values are exact products in NumPy.
    """
    rng = np.random.default_rng(0)
    weight = np.where(rng.random((256, 32)) < 0.5, 1, 0.9).astype(np.float32)
    x = np.ones((3, 256), np.float32)
    for ranges in ({"x": (0.0, 1.0)}, None):
        actual = run(to_int8(product(weight), ranges=ranges), x=x)
        np.testing.assert_allclose(actual, x @ weight, rtol=0.01)


@pytest.mark.parametrize("inputs", [1, 2, 3, 64, 129, 771])
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
    stored = [numpy_helper.from_array(weight, "weight")]
    graph = helper.make_graph([node], "product", [a], [y], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = session_of(model)
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
        product(np.ones((32, int8_module.NARROW - 1), np.float32)),
        product(wide, "Gemm", alpha=0.5),
        product(wide, "Gemm", beta=2.0),
    ):
        assert [n.op_type for n in to_int8(model).graph.node] == [model.graph.node[0].op_type]


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
    stored = [
        numpy_helper.from_array(table, "table"),
        numpy_helper.from_array(np.array([1]), "one"),
    ]
    graph = helper.make_graph(nodes, "tied", [ids], outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = session_of(to_int8(model, ranges={"hidden": (-4.0, 4.0)}))
    rows = np.array([[3], [39], [0]])
    embedded, logits = session.run(None, {"input_ids": rows})
    integers, scales = quantize_columns(table.T)
    rounded = (integers * scales).T
    np.testing.assert_allclose(embedded[:, 0], rounded[rows[:, 0]], rtol=1e-6)
    hidden = np.vstack([rounded[rows[:, 0]], np.full((2, 24), [[-4.0], [4.0]])])  # the range
    expected = fake_quantized(hidden, table.T, ranged=True)[:3]
    np.testing.assert_allclose(logits, expected, atol=1e-4 * largest(expected))


def test_a_column_of_zeros_stays_zero():
    weight = np.zeros((4, 2), np.float32)
    weight[:, 1] = [-2, 1, 0.5, 0]
    integers, scales = quantize_columns(weight)
    np.testing.assert_array_equal(integers[:, 0], 0)
    np.testing.assert_array_equal(integers[:, 1], [-127, 64, 32, 0])  # 63.5 and 31.75 rounded
    np.testing.assert_allclose(scales, [1, 2 / 127])


def test_masked_scores_stay_finite_in_half_precision():
    """The mask's value, added to scores, in float16: no infinity, and no weight after softmax."""
    made = exported("bert")
    plain, half = (graphs(made, p)["model"].graph for p in ("fp32", "fp16"))

    def scalars(graph):
        found = map(numpy_helper.to_array, graph.initializer)
        return {float(v) for v in found if v.size == 1 and v.dtype.kind == "f"}

    assert 1e4 in scalars(plain)  # times 0 or -1
    assert 1e4 in scalars(half)
    assert all(np.isfinite(list(scalars(half))))
    assert np.exp(np.float16(-1e4) + np.float16(60)) == 0


def test_weights_beyond_half_precision_are_refused():
    with raises(InputError, "weight-too-large-for-fp16"):
        to_fp16(product(np.full((2, 2), 7e4, np.float32)))


def test_constants_inside_nodes_become_half_precision():
    """ConstantOfShape without a value means float32 zeros, by the standard."""
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Constant", [], ["half"],
                         value=numpy_helper.from_array(np.float32([0.5]))),
        helper.make_node("Add", ["zeros", "half"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "constants", [shape], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    found = run(to_fp16(model), shape=np.array([3]))
    assert (found.dtype, found.tolist()) == (np.float16, [0.5, 0.5, 0.5])


def test_checks_beyond_their_tolerance_are_refused(monkeypatch, tmp_path):
    """Weights of one bit and a sign: the difference is told, and refused where it must be small."""
    made = copy_of(exported("bert"), tmp_path)
    monkeypatch.setattr(int8_module, "LEVELS", 1)
    batch = inputs(made, rows=3, seed=0)
    checks = add_precision(made.model, [batch], made.directory, "int8")
    assert checks[0].largest_difference > checks[0].tolerance
    with raises(VerificationError, "precision-differs"):
        require_within(checks, "int8")


@pytest.mark.parametrize(("factor", "within"), [(1.0, True), (1e5, False)])
def test_values_beyond_half_precision_are_found_where_it_is_computed_in_float32(
    factor: float, within: bool
):
    """The activations of one layer are large, its weights and its answers are not."""
    model = tiny_model("bert")
    layer = model.bert.encoder.layer[1]
    with torch.no_grad():
        layer.intermediate.dense.bias.fill_(1.0)
        layer.intermediate.dense.weight.mul_(factor)
        layer.output.dense.weight.div_(factor)
        with LargestValue() as largest:
            model(**ragged_batch(model, 3, seed=0))
    hidden = float(torch.nn.functional.gelu(torch.tensor(1.0)))
    assert largest.largest > hidden
    check = range_check(largest.largest)
    assert (check.largest_difference <= check.tolerance) == within
    assert check.largest_difference == pytest.approx(largest.largest / 65_504)
    if not within:
        with raises(VerificationError, "values-beyond-fp16"):
            require_within([check], "fp16")


def test_the_default_is_what_the_runtime_opens(tmp_path):
    made = copy_of(exported("bert"), tmp_path)
    assert Classifier(made.directory).precision == "fp32"
    set_default(made.directory, "int8")
    write_hashes(made.directory)
    opened = Classifier(made.directory)
    assert (opened.precision, opened.artifact.default_precision) == ("int8", "int8")
    rows = ["w5 w7", "w9"]
    named = Classifier(made.directory, precision="int8").logits(rows)
    np.testing.assert_array_equal(opened.logits(rows), named)


def copy_of(made: Exported, directory: Path) -> Exported:
    import shutil

    shutil.copytree(made.directory, directory / "copy")
    return Exported(directory / "copy", made.model, made.tokenizer)


def test_int8_products_are_fused_when_loaded(tmp_path):
    """The chain of standard operators is one that onnxruntime knows; unfused it would be slow."""
    path = tmp_path / "optimized.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    source = exported("marian").directory / "onnx" / "decoder.int8.onnx"
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    found = [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]
    products = [n for n in onnx.load(source).graph.node if n.op_type == "MatMulInteger"]
    assert found.count("DynamicQuantizeMatMul") == len(products)
