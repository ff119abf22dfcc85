"""Graph files are written and read a weight at a time: the same messages as protobuf's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from compressor.export.writing import (
    MOST_INSIDE,
    read_model,
    weight_bytes,
    write_model,
    write_proto,
)


def graph(sizes: list[tuple[int, ...]]) -> onnx.ModelProto:
    """Sums of weights of many types and sizes, with an attribute and a scalar among them."""
    rng = np.random.default_rng(0)
    kinds = [np.float32, np.int8, np.float16, np.int64]
    stored = [
        numpy_helper.from_array((rng.standard_normal(s) * 9).astype(kinds[i % 4]), f"weight.{i}")
        for i, s in enumerate(sizes)
    ]
    nodes = [
        helper.make_node("Cast", [f"weight.{i}"], [f"float.{i}"], to=TensorProto.FLOAT)
        for i in range(len(sizes))
    ]
    nodes += [
        helper.make_node("ReduceSum", [f"float.{i}"], [f"sum.{i}"], keepdims=0)
        for i in range(len(sizes))
    ]
    nodes.append(helper.make_node("Sum", ["x", *(f"sum.{i}" for i in range(len(sizes)))], ["y"]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows"]) for n in "xy")
    made = helper.make_graph(nodes, "sums", [x], [y], stored)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


SIZES = [(3, 5), (128,), (), (40, 70), (1,), (2, 3, 4), (0, 4), (300, 300)]


@pytest.mark.parametrize("count", [0, 1, len(SIZES)])
def test_what_is_written_is_what_protobuf_reads(tmp_path: Path, count: int):
    expected = graph(SIZES[:count])
    model = onnx_ir.serde.deserialize_model(expected)
    assert weight_bytes(model) == sum(len(t.raw_data) for t in expected.graph.initializer)
    write_model(model, tmp_path / "model.onnx")
    assert len(model.graph.initializers) == count  # as it was
    found = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(found, full_check=True)
    assert [t.name for t in found.graph.initializer] == [f"weight.{i}" for i in range(count)]
    for ours, theirs in zip(found.graph.initializer, expected.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(ours), numpy_helper.to_array(theirs))
    assert [n.op_type for n in found.graph.node] == [n.op_type for n in expected.graph.node]
    write_model(model, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()


@pytest.mark.parametrize("external", [False, True])
def test_what_is_read_is_what_protobuf_wrote(tmp_path: Path, external: bool):
    expected = graph(SIZES)
    path = tmp_path / "model.onnx"
    written = graph(SIZES)
    onnx.save_model(
        written, path, save_as_external_data=external, location="data", size_threshold=0
    )
    found = read_model(path)
    assert all(len(t.raw_data) < MOST_INSIDE for t in found.graph.initializer)
    for ours, theirs in zip(found.graph.initializer, expected.graph.initializer, strict=True):
        np.testing.assert_array_equal(
            numpy_helper.to_array(ours, str(tmp_path)), numpy_helper.to_array(theirs)
        )
    assert found.graph.node == expected.graph.node
    assert found.opset_import == expected.opset_import
    write_proto(found, tmp_path / "again.onnx", tmp_path)
    again = onnx.load(tmp_path / "again.onnx")
    assert [t.name for t in again.graph.initializer] == [f"weight.{i}" for i in range(len(SIZES))]
    assert again == expected
