"""BLEU and chrF, computed by sacreBLEU, and the same two formulas for many resamples at once.

sacreBLEU turns each sentence into a few counts; the corpus score is a function of their sums.
Counts and scores on all rows come from sacreBLEU itself. For a bootstrap the counts are extracted
once, and the two functions are evaluated here on a matrix of sums; the tests compare them with
sacreBLEU's. Answers and references are detokenized.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from compressor.evaluation.metric import Array, Labels, SumMetric

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

_ROWS_PER_CHUNK = 2000  # of references whose n-grams sacreBLEU holds at once


class _SacreBleu(SumMetric):
    @abstractmethod
    def theirs(self, references: Sequence[str]) -> Metric:
        """sacreBLEU's metric object with one reference per sentence."""

    def signature(self, labels: Labels) -> str:
        return str(self.theirs(["any"]).get_signature())

    def statistics(
        self, systems: Sequence[Sequence[str]], references: Sequence[str], labels: Labels
    ) -> list[Array]:
        """sacreBLEU's counts, made in chunks, because it keeps the n-grams of all references.

        Its metric object is made with them, so they are split into n-grams once for all systems.
        """
        tables: list[list[list[int]]] = [[] for _ in systems]
        for start in range(0, len(references), _ROWS_PER_CHUNK):
            rows = slice(start, start + _ROWS_PER_CHUNK)
            metric = self.theirs(references[rows])
            for table, outputs in zip(tables, systems, strict=True):
                # Private, but sacreBLEU's own significance tests are built on it; our tests compare
                # every score made from it with sacreBLEU's public functions.
                table.extend(metric._extract_corpus_statistics(outputs[rows], None))
        return [np.array(table, dtype=np.float64) for table in tables]

    def score(self, statistics: Array, counts: Array) -> float:
        sums = [int(total) for total in counts @ statistics]
        return float(self.theirs(["any"])._compute_score_from_stats(sums).score)


class Bleu(_SacreBleu):
    """Corpus BLEU (0-100)."""

    name, label = "bleu", "BLEU"

    def theirs(self, references: Sequence[str]) -> Metric:
        from sacrebleu.metrics import BLEU

        return BLEU(references=[list(references)])

    def from_sums(self, sums: Array) -> Array:
        """With sacreBLEU's default "exp" smoothing.

        Args:
            sums: [resamples, 10]: output length, reference length, 4 matches, 4 totals.
        """
        output, reference, correct, total = sums[:, 0], sums[:, 1], sums[:, 2:6], sums[:, 6:10]
        missed = correct == 0
        # NIST smoothing: an order without a match counts 1/2 match, the next such order 1/4, and so
        # on.
        credit = np.where(missed, 0.5 ** np.cumsum(missed, axis=1), correct)
        logs = np.log(credit) - np.log(np.maximum(total, 1.0))
        penalty = np.minimum(0.0, 1.0 - reference / np.maximum(output, 1.0))
        score = 100.0 * np.exp(np.mean(logs, axis=1) + penalty)
        possible = correct.any(axis=1) & total.all(axis=1)
        return np.where(possible, score, 0.0)


class Chrf(_SacreBleu):
    """Corpus chrF (0-100) with sacreBLEU's defaults: recall counts twice, effective order."""

    name, label = "chrf", "chrF"

    def theirs(self, references: Sequence[str]) -> Metric:
        from sacrebleu.metrics import CHRF

        return CHRF(references=[list(references)])

    def from_sums(self, sums: Array) -> Array:
        """
        Args:
            sums: [resamples, 3 x orders]: per order the n-grams of output and reference, and
                matches.
        """
        beta = 2.0  # weight of recall against precision
        output, reference, match = sums[:, 0::3], sums[:, 1::3], sums[:, 2::3]
        used = (output > 0) & (reference > 0)
        orders = np.maximum(used.sum(axis=1), 1)
        precision = np.where(used, match / np.maximum(output, 1.0), 0.0).sum(axis=1) / orders
        recall = np.where(used, match / np.maximum(reference, 1.0), 0.0).sum(axis=1) / orders
        weighted = beta**2 * precision + recall
        nothing = weighted == 0
        product = 100.0 * (1 + beta**2) * precision * recall
        return np.where(nothing, 0.0, product / np.where(nothing, 1, weighted))
