"""nDCG, MRR and MAP: how near to the top a query's relevant texts are ranked, 0-100.

Answers and references are rankings, see `compressor.tasks.Rows.judged`: of each query, how relevant
its texts are, in the model's order and in the best one. All are means over queries.

- nDCG: Järvelin & Kekäläinen 2002, "Cumulated gain-based evaluation of IR techniques", with the
  relevance itself as the gain and the logarithm to base 2, as trec_eval computes it.
- MRR: the mean of 1 / rank of the first relevant text, 0 where it is beyond the cut.
- MAP: the mean of average precision: precision at each relevant text, averaged over these.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from compressor.evaluation.metric import Array, Labels, SumMetric

CUT = 10  # the ranks that nDCG and MRR look at


class _Ranking(SumMetric):
    counted = "queries"

    @abstractmethod
    def of(self, ranking: list[int], best: list[int]) -> float:
        """The value of one query, 0-1.

        Args:
            ranking: the relevance of its texts, at least one above 0, in the model's order.
            best: the same, the most relevant one first.
        """

    def signature(self, labels: Labels) -> str:
        return "queries:with a relevant text|ties:worst|scale:0-100"

    def statistics(
        self, systems: Sequence[Sequence[str]], references: Sequence[str], labels: Labels
    ) -> list[Array]:
        """[queries, 2]: the value, and 1."""
        best = [json.loads(text) for text in references]
        return [
            np.array([(self.of(json.loads(t), b), 1) for t, b in zip(x, best, strict=True)])
            for x in systems
        ]

    def from_sums(self, sums: Array) -> Array:
        return 100.0 * sums[:, 0] / sums[:, 1]


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
        return sum(found / rank for found, rank in enumerate(ranks, 1)) / len(ranks)


def _dcg(ranking: list[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ranking[:CUT], 1))
