"""Magnitude: the Frobenius norm of a head's block of the output projection. Needs no data."""

from __future__ import annotations

import torch
from torch import Tensor

from compressor.importance import RawScores, Scoring


@torch.no_grad()
def score(scoring: Scoring) -> RawScores:
    values = {}
    for layer in scoring.layers:
        weight: Tensor = scoring.model.get_submodule(layer.output).weight  # type: ignore[assignment]
        blocks = weight.unflatten(1, (layer.units, layer.unit_width))  # [width, heads, head_dim]
        keep = torch.tensor(scoring.mask.keep[layer.name])
        norms = blocks.float().pow(2).sum((0, 2)).sqrt().cpu()
        values[layer.name] = (norms * keep).tolist()
    return RawScores(values, "block:output_projection")
