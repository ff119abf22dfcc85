"""Random scores: the baseline that any method must beat."""

from __future__ import annotations

import numpy as np

from compressor.importance import RawScores, Scoring


def score(scoring: Scoring) -> RawScores:
    rng = np.random.default_rng(scoring.seed)
    # By the columns of a unit: where heads compete with neurons, both lose the same share.
    values = {
        layer.name: (rng.random(layer.units) * layer.unit_width).tolist()
        for layer in scoring.layers
    }
    return RawScores(values, f"seed:{scoring.seed}")
