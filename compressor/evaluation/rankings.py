"""nDCG, MRR and MAP: whether a query's relevant texts are ranked near the top, 0-100.

Outputs and references are rankings, see `compressor.tasks.Rows.judged`: the relevance of each
query's texts, in the model's order and in the best one. All are means over queries.

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

from compressor.evaluation.metric import Array, Labels, MeanMetric

CUT = 10  # number of ranks that nDCG and MRR use


class _Ranking(MeanMetric):
    counted = "queries"

    @abstractmethod
    def of(self, ranking: list[int], best: list[int]) -> float:
        """The score of a query's ranking: the relevance of its texts in the model's order.

        `best` has the most relevant one first, which is above 0.
        """

    def signature(self, labels: Labels) -> str:
        return "queries:with a relevant text|ties:worst|scale:0-100"

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

    def signature(self, labels: Labels) -> str:
        return f"gain:linear|discount:log2|{super().signature(labels)}"

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
