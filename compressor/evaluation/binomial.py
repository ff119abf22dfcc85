"""Exact binomial probabilities; tested against SciPy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def binomial_tail(trials: int, chance: float) -> NDArray[np.float64]:
    """Chance of at least k hits in `trials`, for k = 0 … trials: [trials + 1]."""
    if chance <= 0.0 or chance >= 1.0:
        found = np.full(trials + 1, float(chance >= 1.0))
        found[0] = 1.0
        return found
    k = np.arange(trials + 1)
    logs = np.array([math.lgamma(n + 1) for n in range(trials + 1)])
    each = logs[-1] - logs - logs[::-1] + k * math.log(chance) + (trials - k) * math.log1p(-chance)
    return np.minimum(np.cumsum(np.exp(each)[::-1])[::-1], 1.0)


def mcnemar(first: int, second: int) -> float:
    """Two-sided p-value of McNemar's exact test.

    Where neither model is better, each of the rows that one of them alone has right is as likely
    to be the one's as the other's.

    Args:
        first: rows that the first model alone has right.
        second: rows that the second model alone has right.
    """
    discordant = first + second
    return min(1.0, 2 * float(binomial_tail(discordant, 0.5)[max(first, second)]))
