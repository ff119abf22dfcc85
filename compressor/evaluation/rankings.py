"""nDCG, MRR and MAP: how near to the top a query's relevant texts are ranked, 0-100.

Outputs and references are rankings (`compressor.tasks.Rows.judged`): the relevance of each query's
texts, in the order of the model or in the best one. All are means over queries.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod

import numpy as np
from typing_extensions import override

from compressor.evaluation.metric import Array, MeanMetric, Texts

CUT = 10  # number of ranks that nDCG and MRR use


class _Ranking(MeanMetric):
    """Metrics of the relevance of a query's texts, in the order of the model."""

    counted = "queries"
    definition = "queries:with a relevant text|ties:worst|scale:0-100"

    @abstractmethod
    def of(self, ranking: list[int], best: list[int]) -> float:
        """The score of a query's ranking, from 0 to 1.

        Args:
            ranking: the relevance of its texts, at least one above 0, in the model's order.
            best: the same, the most relevant one first.
        """

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
        """Statistics of random orders of each query's own texts, [queries, 2]."""
        means = []
        for best in map(self.read, references):
            orders = (generator.permutation(best).tolist() for _ in range(self.random_orders))
            means.append(sum(self.of(order, best) for order in orders) / self.random_orders)
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
    """Discounted cumulative gain of the first `CUT` texts."""
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ranking[:CUT], 1))
