"""Random scores: the baseline that any method must beat."""

from __future__ import annotations

from typing import ClassVar

from compressor.importance import NormalizedMethod, RawScores, ScoringJob


class Random(NormalizedMethod):
    """Random scores, a baseline."""

    needs_rows: ClassVar[bool] = False
    name: ClassVar[str] = "random"

    def score(self, scoring: ScoringJob) -> RawScores:
        import numpy as np

        rng = np.random.default_rng(scoring.seed)
        # Scaled by the columns of a unit, so that heads and neurons lose the same share.
        values = {x.name: (rng.random(x.units) * x.unit_width).tolist() for x in scoring.layers}
        return RawScores(values, f"seed:{scoring.seed}")
