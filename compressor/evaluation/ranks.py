"""Correlation of numbers, for many resamples at once: Spearman's of their ranks, and Pearson's.

Ties have their mean rank, as in SciPy.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from compressor.errors import InputError
from compressor.evaluation.metric import Array, Labels, Metric


class _Correlation(Metric):
    """Correlation of outputs with references, times 100; 0 where undefined."""

    scale = 200.0
    floor = 0.0

    @abstractmethod
    def centered(self, values: Array, counts: Array) -> Array:
        """Values to correlate, minus their mean, [resamples, rows], each drawn `counts` times."""

    def signature(self, labels: Labels) -> str:
        return "undefined:0|scale:-100-100"

    def require(self, answers: Sequence[str], references: Sequence[str]) -> None:
        for what, texts in (("output", answers), ("reference", references)):
            for row, text in enumerate(texts, 1):
                try:
                    is_number = math.isfinite(float(text))
                except ValueError:
                    is_number = False
                if not is_number:
                    raise InputError(
                        f"the {what} {text[:40]!r} in row {row} is not a number",
                        id="score-not-number",
                    )

    def statistics(
        self, systems: Sequence[Sequence[str]], references: Sequence[str]
    ) -> list[Array]:
        """[rows, 2]: the output and the reference."""
        right = np.array(references, dtype=np.float64)
        return [np.stack([np.array(x, dtype=np.float64), right], axis=1) for x in systems]

    def scores(self, statistics: Array, counts: Array) -> Array:
        first, second = (self.centered(column, counts) for column in statistics.T)
        covariance = (first * second * counts).sum(axis=1)
        spread = np.sqrt((first**2 * counts).sum(axis=1) * (second**2 * counts).sum(axis=1))
        return 100.0 * covariance / np.where(spread > 0, spread, np.inf)


class Spearman(_Correlation):
    """Correlation of ranks."""

    name, label = "spearman", "Spearman"

    def signature(self, labels: Labels) -> str:
        return f"ties:mean rank|{super().signature(labels)}"

    def centered(self, values: Array, counts: Array) -> Array:
        # Mean ranks minus their mean; values of a tie share theirs.
        order = np.argsort(values, kind="stable")
        first = np.flatnonzero(np.r_[True, np.diff(values[order]) != 0])  # of each run of ties
        drawn = np.add.reduceat(counts[:, order], first, axis=1)  # [resamples, distinct values]
        ranks = np.cumsum(drawn, axis=1) - drawn / 2
        run_of = np.empty(len(values), dtype=np.intp)  # the run of each value
        run_of[order] = np.repeat(np.arange(len(first)), np.diff(np.r_[first, len(values)]))
        return ranks[:, run_of] - counts.sum(axis=1, keepdims=True) / 2


class Pearson(_Correlation):
    """Correlation of the numbers themselves."""

    name, label = "pearson", "Pearson"

    def centered(self, values: Array, counts: Array) -> Array:
        # The overall mean is subtracted first, for precision; differences within rounding are 0.
        shifted = values - values.mean()
        means = (counts @ shifted) / counts.sum(axis=1)
        centered = shifted - means[:, None]
        rounding = 1e-12 * np.abs(values).max(initial=0.0)
        return np.where(np.abs(centered) > rounding, centered, 0.0)
