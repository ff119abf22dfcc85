"""Spearman's rank correlation of the answers with the right numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compressor.evaluation.metric import Array, Labels, Metric


class Spearman(Metric):
    name, label, digits, scale = "rank_correlation", "Rank correlation", 4, 2.0

    def signature(self, labels: Labels) -> str:
        return "ties:mean rank|scale:-1-1"

    def statistics(
        self, systems: Sequence[Sequence[str]], references: Sequence[str]
    ) -> list[Array]:
        """[rows, 2]: the answer and the right number."""
        right = np.array(references, dtype=np.float64)
        return [np.stack([np.array(x, dtype=np.float64), right], axis=1) for x in systems]

    def scores(self, statistics: Array, counts: Array) -> Array:
        first, second = (_ranks(column, counts) for column in statistics.T)
        covariance = _mean(first * second, counts)
        return covariance / np.sqrt(_mean(first**2, counts) * _mean(second**2, counts))


def _ranks(values: Array, counts: Array) -> Array:
    """Mean ranks [resamples, rows] of values that are drawn `counts` times, their mean being 0."""
    distinct, places = np.unique(values, return_inverse=True)
    drawn = counts @ np.eye(len(distinct))[places]  # [resamples, distinct values]
    ranks = (np.cumsum(drawn, axis=1) - drawn / 2)[:, places]
    return ranks - _mean(ranks, counts)[:, None]


def _mean(values: Array, counts: Array) -> Array:
    return (values * counts).sum(axis=1) / counts.sum(axis=1)
