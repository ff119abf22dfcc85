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

from compressor.evaluation.metric import Array, Labels, MeanMetric

CUT = 10  # the ranks that nDCG and MRR look at


class _Ranking(MeanMetric):
    counted = "queries"

    @abstractmethod
    def of(self, ranking: list[int], best: list[int]) -> float:
        """What a query's ranking is worth.

        Args:
            ranking: the relevance of its texts, at least one above 0, in the model's order.
            best: the same, the most relevant one first.
        """

    def signature(self, labels: Labels) -> str:
        return "queries:with a relevant text|ties:worst|scale:0-100"

    def read(self, reference: str) -> list[int]:
        found: list[int] = json.loads(reference)
        return found

    def worth(self, answer: str, reference: list[int]) -> float:
        return self.of(self.read(answer), reference)

    def uninformed(
        self,
        answers: Sequence[str],
        references: Sequence[str],
        labels: Labels,
        generator: np.random.Generator,
    ) -> Array:
        """The mean of several random orders of each query's own texts."""
        best = [self.read(reference) for reference in references]
        found = [
            sum(self.of(generator.permutation(x).tolist(), x) for _ in range(self.deals))
            / self.deals
            for x in best
        ]
        return np.array([(x, 1.0) for x in found])


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
