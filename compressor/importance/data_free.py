"""Scores without data: norms of weights, and random ones, which any method must beat."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from compressor.importance import Magnitude, Random, RawScores, ScoringJob


def magnitude_scores(method: Magnitude, scoring: ScoringJob) -> RawScores:
    """The Frobenius norm of a unit's block of the output projection."""
    values = {}
    for layer in scoring.layers:
        weight: Tensor = scoring.model.get_submodule(layer.output).weight.detach()  # type: ignore[operator]
        blocks = weight.unflatten(1, (layer.units, layer.unit_width))  # [width, units, columns]
        norms = blocks.float().pow(2).sum((0, 2)).sqrt().cpu()
        values[layer.name] = (norms * norms.new_tensor(scoring.mask.keep[layer.name])).tolist()
    return RawScores(values, "block:output_projection")


def random_scores(method: Random, scoring: ScoringJob) -> RawScores:
    """Scaled by the columns of a unit, so that heads and neurons lose the same share."""
    rng = np.random.default_rng(scoring.seed)
    values = {x.name: (rng.random(x.units) * x.unit_width).tolist() for x in scoring.layers}
    return RawScores(values, f"seed:{scoring.seed}")
