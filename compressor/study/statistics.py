"""Significance where many things are looked at at once; tested against SciPy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compressor.importance.compare import ranks

Floats = NDArray[np.float64]
ALPHA = 0.05
PERMUTATIONS = 10_000


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm 1979: the chance of even one false discovery stays below them."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return _in_place(order, np.minimum(steps, 1.0))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Benjamini & Hochberg 1995: the share of false discoveries."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = p[order] * len(p) / np.arange(1, len(p) + 1)
    return _in_place(order, np.minimum(np.minimum.accumulate(steps[::-1])[::-1], 1.0))


def _in_place(order: NDArray[np.intp], values: Floats) -> list[float]:
    found = np.empty_like(values)
    found[order] = values
    return found.tolist()


def hypergeometric_tail(hits: int, drawn: int, marked: int, total: int) -> float:
    """Chance of at least `hits` marked ones among `drawn` of `total`, `marked` of them marked."""
    ways = sum(
        math.comb(marked, k) * math.comb(total - marked, drawn - k)
        for k in range(hits, min(drawn, marked) + 1)
    )
    return ways / math.comb(total, drawn)


def permutation_p(x: Floats, y: Floats, seed: int, permutations: int = PERMUTATIONS) -> float:
    """Two-sided p-value of Spearman's correlation by shuffling one side.

    (1 + number of shuffles with at least as large an absolute correlation) / (1 + shuffles).
    """
    a, b = ranks(x) - (len(x) + 1) / 2, ranks(y) - (len(y) + 1) / 2
    observed = abs(float(a @ b))
    generator = np.random.default_rng(seed)
    shuffled = generator.permuted(np.tile(b, (permutations, 1)), axis=1)
    # Products of ranks are multiples of 1/4: what is closer than that is equal.
    larger = np.abs(shuffled @ a) >= observed - 1e-6
    return (1 + int(np.count_nonzero(larger))) / (1 + permutations)
