"""Models are traced once on their way to ONNX; their graphs compute what PyTorch computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.onnx._internal.fx.passes import type_promotion

from compressor.export.graphs import BATCH, SOURCE, export_graph, quick_exporter

FLOATS = torch.tensor([[0.3, -1.7, 2.0], [4.1, 0.0, -0.6]])
COUNTS = torch.tensor([[1, 2, 3], [-4, 5, 70]])


class Computes(nn.Module):
    """A graph of one expression of floats and counts, both [rows, columns]."""

    def __init__(self, expression) -> None:
        super().__init__()
        self.expression = expression

    def forward(self, floats, counts):
        return self.expression(floats, counts)


def exported(expression, tmp_path: Path) -> np.ndarray:
    """What onnxruntime computes."""
    rows = {0: torch.export.Dim("rows", min=1)}
    export_graph(
        Computes(expression), (FLOATS, COUNTS), ["floats", "counts"], ["result"],
        {"floats": rows, "counts": rows}, tmp_path / "graph.onnx",
    )  # fmt: skip
    path = tmp_path / "graph.onnx"
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"floats": FLOATS.numpy(), "counts": COUNTS.numpy()})
    return result


@pytest.mark.parametrize(
    "expression",
    [
        lambda floats, counts: floats * 2 + (counts != 4).to(torch.float32),
        lambda floats, counts: torch.cat([floats, counts - 1], 1)[:, :4] * counts[:, :1].float(),
        lambda floats, counts: (floats > counts).float() - counts * 0.5,
        lambda floats, counts: (counts.int().cumsum(1) * 2**30).float() + floats,
        # The exporter has no ONNX function for the variance, so this program is decomposed.
        lambda floats, counts: floats.var(dim=-1) + counts[:, 0],
    ],
)
def test_graphs_compute_what_pytorch_computes(expression, tmp_path: Path):
    result = exported(expression, tmp_path)
    expected = expression(FLOATS, COUNTS).numpy()
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


class Middle(nn.Module):
    def forward(self, input_ids: Tensor) -> Tensor:
        return input_ids.unflatten(-1, (1, -1, 1)).flatten(0, 1)


def test_a_change_of_other_dimensions_than_the_last_is_refused(tmp_path: Path):
    example = (torch.ones(2, 5, dtype=torch.long),)
    shapes = {"input_ids": {0: BATCH, 1: SOURCE}}
    with pytest.raises(torch.onnx.errors.OnnxExporterError):
        export_graph(Middle(), example, ["input_ids"], ["out"], shapes, tmp_path / "middle.onnx")


def test_another_version_of_pytorch_does_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One whose method has other parameters, and one that has no such method."""
    decompose = ExportedProgram.run_decompositions
    decomposed = []

    def other(self: Any, table: Any = None) -> Any:
        decomposed.append(self)
        return decompose(self, table)

    monkeypatch.setattr(ExportedProgram, "run_decompositions", other)
    result = exported(lambda floats, counts: floats * 2 + counts.float(), tmp_path)
    np.testing.assert_allclose(result, (FLOATS * 2 + COUNTS).numpy(), rtol=1e-6)
    assert decomposed
    monkeypatch.delattr(ExportedProgram, "run_decompositions")
    with quick_exporter():
        assert not hasattr(ExportedProgram, "run_decompositions")
    monkeypatch.delattr(type_promotion, "_TypePromotionInterpreter")
    with quick_exporter():
        pass
