"""`compress export --precision int8` with calibration rows and without."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from compressor.errors import UsageError
from compressor.pipeline.run import export_checkpoint
from compressor.request.recipe import ExportRequest
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.recipes import request as make_request


def operators(output: Path) -> set[str]:
    return {node.op_type for node in onnx.load(output / "onnx" / "model.int8.onnx").graph.node}


@pytest.mark.slow
def test_activations_are_rounded_in_the_range_of_the_rows(tmp_path):
    model = toy.classifier(tmp_path / "dense")
    rows = toy.labels_file(tmp_path / "rows.tsv")
    options = {"model": str(model), "precision": ["fp32", "int8"]}
    asked = make_request(ExportRequest, **options, calibration=str(rows))
    check = export_checkpoint(asked, tmp_path / "ranged")[-1]
    assert check.largest_difference <= check.tolerance
    assert "random tokens" not in check.detail
    assert "ReduceMax" not in operators(tmp_path / "ranged")
    assert not list((tmp_path / "ranged").rglob("*observed*"))
    check = export_checkpoint(make_request(ExportRequest, **options), tmp_path / "without")[-1]
    assert "random tokens, so what it means for quality is not known" in check.detail
    assert "ReduceMax" in operators(tmp_path / "without")


def test_rows_without_int8_are_refused(tmp_path):
    model = toy.classifier(tmp_path / "dense")
    rows = toy.labels_file(tmp_path / "rows.tsv")
    command = ["export", "-m", model, "-o", tmp_path / "out", "--calibration", rows]
    for more in ([], ["--layout", "optimum"]):
        with raises(UsageError, "option-without-use"):
            invoke(*command, *more)
    assert not (tmp_path / "out").exists()
