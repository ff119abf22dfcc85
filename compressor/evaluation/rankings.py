"""Metrics of numbers: correlation with other numbers, and rankings of texts by them.

Rankings (`compressor.tasks.Rows.judged`) have the relevance of each query's texts, in the order of
the model or in the best one. Their metrics are means over queries, 0-100.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from compressor.evaluation.metric import Array, MeanMetric, Metric, Texts
from compressor.tasks.rows import finite_numbers

CUT = 10  # number of ranks that nDCG and MRR use


class _Ranking(MeanMetric):
    counted = "queries"
    definition = "queries:with a relevant text|ties:worst|scale:0-100"

    @abstractmethod
    def of(self, ranking: list[int], best: list[int]) -> float:
        """The score of a query's ranking; `best` has the most relevant text first, above 0."""

    @override
    def read(self, reference: str) -> list[int]:
        relevance: list[int] = json.loads(reference)
        return relevance

    @override
    def row_score(self, answer: str, reference: list[int]) -> float:
        return self.of(self.read(answer), reference)

    def uninformed(
        self, answers: Texts, references: Texts, generator: np.random.Generator
    ) -> Array:
        """The mean of several random orders of each query's own texts."""
        means = []
        for best in map(self.read, references):
            orders = (generator.permutation(best).tolist() for _ in range(self.deals))
            means.append(sum(self.of(order, best) for order in orders) / self.deals)
        return np.array([(mean, 1.0) for mean in means])


class Ndcg(_Ranking):
    """Normalized discounted cumulative gain of the first ten, as trec_eval computes it.

    Järvelin & Kekäläinen 2002, "Cumulated gain-based evaluation of IR techniques", with the
    relevance itself as the gain and the logarithm to base 2.
    """

    name, label = f"ndcg@{CUT}", f"nDCG@{CUT}"
    definition = f"gain:linear|discount:log2|{_Ranking.definition}"

    @override
    def of(self, ranking: list[int], best: list[int]) -> float:
        return _dcg(ranking) / _dcg(best)


class ReciprocalRank(_Ranking):
    """Mean reciprocal rank of the first relevant text, within the first ten."""

    name, label = f"mrr@{CUT}", f"MRR@{CUT}"

    @override
    def of(self, ranking: list[int], best: list[int]) -> float:
        return next((1 / rank for rank, gain in enumerate(ranking[:CUT], 1) if gain), 0.0)


class AveragePrecision(_Ranking):
    """Mean over queries of the precision at each relevant text, averaged over these."""

    name, label = "map", "MAP"

    @override
    def of(self, ranking: list[int], best: list[int]) -> float:
        ranks = [rank for rank, gain in enumerate(ranking, 1) if gain]
        return sum(count / rank for count, rank in enumerate(ranks, 1)) / len(ranks)


def _dcg(ranking: list[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ranking[:CUT], 1))


class _Correlation(Metric):
    """Correlation of outputs with references, times 100."""

    definition = "undefined:0|scale:-100-100"
    scale = 200.0
    floor = 0.0

    @abstractmethod
    def centered(self, values: Array, counts: Array) -> Array:
        """Values to correlate, minus their mean, [resamples, rows], each drawn `counts` times."""

    def statistics(self, systems: Sequence[Texts], references: Texts) -> list[Array]:
        """[rows, 2]: the output and the reference."""
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
