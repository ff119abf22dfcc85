"""Models are traced once on their way to ONNX; more is done only if their operators ask for it."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from compressor.export.graphs import BATCH, SOURCE, export_graph
from compressor.export.tracing import traced_once

FLOATS = torch.tensor([[0.3, -1.7, 2.0], [4.1, 0.0, -0.6]])
COUNTS = torch.tensor([[1, 2, 3], [-4, 5, 70]])


class Computes(nn.Module):
    """A graph of one expression of floats and counts, both [rows, columns]."""

    def __init__(self, expression) -> None:
        super().__init__()
        self.expression = expression

    def forward(self, floats, counts):
        return self.expression(floats, counts)


def exported(expression, tmp_path) -> tuple[np.ndarray, int]:
    """What onnxruntime computes, and how often the exporter searched for types to promote."""
    from torch.onnx._internal.exporter import _fx_passes

    rows = {0: torch.export.Dim("rows", min=1)}
    with mock.patch.object(
        _fx_passes, "insert_type_promotion_nodes", wraps=_fx_passes.insert_type_promotion_nodes
    ) as search:
        export_graph(
            Computes(expression), (FLOATS, COUNTS), ["floats", "counts"], ["found"],
            {"floats": rows, "counts": rows}, tmp_path / "graph.onnx",
        )  # fmt: skip
    session = onnxruntime.InferenceSession(
        tmp_path / "graph.onnx", providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"floats": FLOATS.numpy(), "counts": COUNTS.numpy()})
    return found, search.call_count


@pytest.mark.parametrize(
    ("expression", "searches"),
    [
        (lambda floats, counts: floats * 2 + (counts != 4).to(torch.float32), 0),
        (lambda floats, counts: torch.cat([floats, floats - 1], 1)[:, :3] * counts.float(), 0),
        (lambda floats, counts: (floats > floats[:, :1]).float() + counts.float(), 0),
        (lambda floats, counts: floats * counts, 1),
        (lambda floats, counts: counts * 0.5 + floats, 1),
        (lambda floats, counts: torch.cat([floats, counts], 1), 1),
        (lambda floats, counts: (counts.int().cumsum(1) * 2**30).float() + floats, 1),
        (lambda floats, counts: (floats > counts).float() - floats, 1),
        (lambda floats, counts: floats + (counts != 2.5).float(), 1),
        (lambda floats, counts: floats.exp() + counts, 1),
        (lambda floats, counts: counts.tanh() + floats.tanh(), 1),
    ],
)
def test_operands_of_different_types_are_brought_to_one(expression, searches, tmp_path):
    found, searched = exported(expression, tmp_path)
    expected = expression(FLOATS, COUNTS).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert searched == searches


def test_the_exporter_is_left_as_it_was():
    from torch.export import ExportedProgram
    from torch.onnx._internal.exporter import _fx_passes
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    def patched() -> list[object]:
        return [
            ExportedProgram.run_decompositions,
            vars(ONNXRegistry)["from_torchlib"],
            _fx_passes.insert_type_promotion_nodes,
        ]

    before = patched()
    with traced_once():
        assert all(now is not was for now, was in zip(patched(), before, strict=True))
        first, second = ONNXRegistry.from_torchlib(), ONNXRegistry.from_torchlib()
        target = next(iter(first.functions))
        first.functions[target].clear()
        assert second.functions[target]  # copies share no list
    assert patched() == before


class Spread(nn.Module):
    """Has an operator, the variance, that ONNX lacks."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return input_ids.to(torch.float32).var(dim=-1)


def test_other_operators_are_decomposed(tmp_path):
    path = tmp_path / "spread.onnx"
    example = (torch.ones(2, 5, dtype=torch.long),)
    shapes = {"input_ids": {0: BATCH, 1: SOURCE}}
    export_graph(Spread(), example, ["input_ids"], ["spread"], shapes, path)
    ids = np.random.default_rng(0).integers(0, 60, (3, 7))
    (found,) = onnxruntime.InferenceSession(path).run(None, {"input_ids": ids})
    assert found == pytest.approx(ids.var(axis=-1, ddof=1), rel=1e-6)


class Middle(nn.Module):
    def forward(self, input_ids: Tensor) -> Tensor:
        return input_ids.unflatten(-1, (1, -1, 1)).flatten(0, 1)


def test_a_change_of_other_dimensions_than_the_last_is_refused(tmp_path):
    example = (torch.ones(2, 5, dtype=torch.long),)
    shapes = {"input_ids": {0: BATCH, 1: SOURCE}}
    with pytest.raises(torch.onnx.errors.OnnxExporterError):
        export_graph(Middle(), example, ["input_ids"], ["out"], shapes, tmp_path / "middle.onnx")
