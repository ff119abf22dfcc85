"""Spearman's rank correlation, for many resamples at once; ties have their mean rank (SciPy's)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compressor.errors import InputError
from compressor.evaluation.metric import Array, Labels, Metric


class Spearman(Metric):
    """Rank correlation of the answers with the right numbers, times 100; 0 where undefined."""

    name, label = "spearman", "Spearman"

    def signature(self, labels: Labels) -> str:
        return "ties:mean rank|undefined:0|scale:-100-100"

    def require(self, answers: Sequence[str], references: Sequence[str], labels: Labels) -> None:
        for what, texts in (("answer", answers), ("right answer", references)):
            for row, text in enumerate(texts, 1):
                if not _is_number(text):
                    raise InputError(
                        f"the {what} {text[:40]!r} in row {row} is not a number",
                        id="score-not-number",
                    )

    def statistics(
        self, systems: Sequence[Sequence[str]], references: Sequence[str], labels: Labels
    ) -> list[Array]:
        """[rows, 2]: the answer and the right number."""
        right = np.array(references, dtype=np.float64)
        return [np.stack([np.array(x, dtype=np.float64), right], axis=1) for x in systems]

    def scores(self, statistics: Array, counts: Array) -> Array:
        first, second = (_centered_ranks(column, counts) for column in statistics.T)
        covariance = (first * second * counts).sum(axis=1)
        spread = np.sqrt((first**2 * counts).sum(axis=1) * (second**2 * counts).sum(axis=1))
        return 100.0 * covariance / np.where(spread > 0, spread, np.inf)


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _centered_ranks(values: Array, counts: Array) -> Array:
    """Mean ranks less their mean, [resamples, rows], of values drawn `counts` times each."""
    order = np.argsort(values, kind="stable")
    first = np.flatnonzero(np.r_[True, np.diff(values[order]) != 0])  # of each run of ties
    drawn = np.add.reduceat(counts[:, order], first, axis=1)  # [resamples, distinct values]
    ranks = np.cumsum(drawn, axis=1) - drawn / 2
    places = np.empty(len(values), dtype=np.intp)
    places[order] = np.repeat(np.arange(len(first)), np.diff(np.r_[first, len(values)]))
    return ranks[:, places] - counts.sum(axis=1, keepdims=True) / 2
