"""Random scores: the baseline that any method must beat."""

from __future__ import annotations

import numpy as np

from compressor.importance import RawScores, Scoring


def score(scoring: Scoring) -> RawScores:
    rng = np.random.default_rng(scoring.seed)
    values = {layer.name: rng.random(layer.units).tolist() for layer in scoring.layers}
    return RawScores(values, f"seed:{scoring.seed}")
