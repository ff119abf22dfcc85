"""Models are traced once on their way to ONNX, and twice only if their operators ask for it."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from compressor.export.graphs import BATCH, SOURCE, export_graph


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
