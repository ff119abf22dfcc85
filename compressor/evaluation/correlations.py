"""Correlations of numbers with reference numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from compressor.evaluation.metric import Array, Metric, Texts
from compressor.tasks.rows import finite_numbers


class _Correlation(Metric):
    """Correlation of outputs with the correct numbers, times 100; 0 where undefined.

    Statistics [rows, 2]: the output and the reference.
    """

    definition = "undefined:0|scale:-100-100"
    scale = 200.0
    floor = 0.0

    @abstractmethod
    def centered(self, values: Array, counts: Array) -> Array:
        """Values to correlate, minus their mean over the draws.

        Args:
            values: of one column, [rows].
            counts: the number of draws of each row, [resamples, rows].

        Returns:
            [resamples, rows].
        """

    def statistics(self, systems: Sequence[Texts], references: Texts) -> list[Array]:
        """Read outputs and references as numbers, [rows, 2].

        Raises:
            InputError: an output is not a finite number.
        """
        right = np.array(references, dtype=np.float64)
        return [np.stack([np.array(finite_numbers(x)), right], axis=1) for x in systems]

    @override
    def scores(self, statistics: Array, counts: Array) -> Array:
        first, second = (self.centered(column, counts) for column in statistics.T)
        covariance = (first * second * counts).sum(axis=1)
        spread = np.sqrt((first**2 * counts).sum(axis=1) * (second**2 * counts).sum(axis=1))
        return 100.0 * covariance / np.where(spread > 0, spread, np.inf)


class Spearman(_Correlation):
    """Correlation of ranks; those of a tie are their mean, as in SciPy."""

    name, label = "spearman", "Spearman"
    definition = f"ties:mean rank|{_Correlation.definition}"

    @override
    def centered(self, values: Array, counts: Array) -> Array:
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

    @override
    def centered(self, values: Array, counts: Array) -> Array:
        # The overall mean is subtracted first, for precision; differences within rounding are 0.
        shifted = values - values.mean()
        means = (counts @ shifted) / counts.sum(axis=1)
        centered = shifted - means[:, None]
        rounding = 1e-12 * np.abs(values).max(initial=0.0)
        return np.where(np.abs(centered) > rounding, centered, 0.0)
