"""Metrics of numbers: correlation with other numbers, and rankings of texts by them.

Correlations are Spearman's of the ranks, and Pearson's. Ties have their mean rank, as in SciPy.

nDCG, MRR and MAP say whether a query's relevant texts are ranked near the top, 0-100. Outputs and
references are then rankings, see `compressor.tasks.Rows.judged`: the relevance of each query's
texts, in the model's order and in the best one. All are means over queries.

- nDCG: Järvelin & Kekäläinen 2002, "Cumulated gain-based evaluation of IR techniques", with the
  relevance itself as the gain and the logarithm to base 2, as trec_eval computes it.
- MRR: the mean of 1 / rank of the first relevant text, 0 beyond the first ten ranks.
- MAP: the mean of average precision: precision at each relevant text, averaged over these.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from compressor.errors import InputError
from compressor.evaluation.metric import Array, MeanMetric, Metric

CUT = 10  # number of ranks that nDCG and MRR use


class _Ranking(MeanMetric):
    counted = "queries"
    definition = "queries:with a relevant text|ties:worst|scale:0-100"

    @abstractmethod
    def of(self, ranking: list[int], best: list[int]) -> float:
        """The score of a query's ranking: the relevance of its texts in the model's order.

        `best` has the most relevant one first, which is above 0.
        """

    def read(self, reference: str) -> list[int]:
        relevance: list[int] = json.loads(reference)
        return relevance

    def row_score(self, answer: str, reference: list[int]) -> float:
        return self.of(self.read(answer), reference)

    def uninformed(
        self, answers: Sequence[str], references: Sequence[str], generator: np.random.Generator
    ) -> Array:
        """The mean of several random orders of each query's own texts."""
        means = []
        for best in map(self.read, references):
            orders = (generator.permutation(best).tolist() for _ in range(self.deals))
            means.append(sum(self.of(order, best) for order in orders) / self.deals)
        return np.array([(mean, 1.0) for mean in means])


class Ndcg(_Ranking):
    """Normalized discounted cumulative gain of the first ten."""

    name, label = f"ndcg@{CUT}", f"nDCG@{CUT}"
    definition = f"gain:linear|discount:log2|{_Ranking.definition}"

    def of(self, ranking: list[int], best: list[int]) -> float:
        return _dcg(ranking) / _dcg(best)


class ReciprocalRank(_Ranking):
    """Mean reciprocal rank of the first relevant text, within the first ten."""

    name, label = f"mrr@{CUT}", f"MRR@{CUT}"

    def of(self, ranking: list[int], best: list[int]) -> float:
        return next((1 / rank for rank, gain in enumerate(ranking[:CUT], 1) if gain), 0.0)


class AveragePrecision(_Ranking):
    """Mean average precision over all ranks."""

    name, label = "map", "MAP"

    def of(self, ranking: list[int], best: list[int]) -> float:
        ranks = [rank for rank, gain in enumerate(ranking, 1) if gain]
        return sum(count / rank for count, rank in enumerate(ranks, 1)) / len(ranks)


def _dcg(ranking: list[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ranking[:CUT], 1))


class _Correlation(Metric):
    """Correlation of outputs with references, times 100; 0 where undefined."""

    definition = "undefined:0|scale:-100-100"
    scale = 200.0
    floor = 0.0

    @abstractmethod
    def centered(self, values: Array, counts: Array) -> Array:
        """Values to correlate, minus their mean, [resamples, rows], each drawn `counts` times."""

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
    definition = f"ties:mean rank|{_Correlation.definition}"

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
