"""Significance tests that SciPy lacks or computes with other draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ALPHA = 0.05
# No p-value can be below 1 in 10,001.
PERMUTATIONS = 10_000


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm 1979: the chance of even one false discovery stays below them."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    # The smallest is multiplied by all n, the next by n - 1, …; none falls below the one before.
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted.tolist()


def permutation_p(x: Floats, y: Floats, seed: int) -> float:
    """Two-sided p-value of Spearman's correlation by shuffling one side.

    (1 + number of shuffles with at least as large an absolute correlation) / (1 + shuffles).
    """
    from scipy.stats import rankdata

    # Spearman's correlation is Pearson's of ranks. Shuffling changes no variance, so products of
    # centered ranks stand for the correlations.
    middle = (len(x) + 1) / 2
    a, b = rankdata(x) - middle, rankdata(y) - middle
    observed = abs(float(a @ b))
    generator = np.random.default_rng(seed)
    shuffled = generator.permuted(np.tile(b, (PERMUTATIONS, 1)), axis=1)  # [shuffles, values]
    # Products of ranks are multiples of 1/4: what is closer than that is equal.
    larger = np.abs(shuffled @ a) >= observed - 1e-6
    # The order as it was counts as one of the shuffles, so that no p-value is 0.
    return (1 + int(np.count_nonzero(larger))) / (1 + PERMUTATIONS)
