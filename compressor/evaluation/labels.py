"""Accuracy, F1 and Matthews correlation from confusion counts, for many resamples at once.

An output is a label, or any number of labels separated by tabs. Definitions are scikit-learn's
(with which the tests compare): macro F1 averages over the labels that occur in the gold or
predicted column, and the F1 of a label without a correct row is 0; micro F1 uses the sums of all
labels' counts; the correlation is Gorodkin's 2004 generalization to many labels, 0 where undefined.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from compressor.evaluation.metric import Array, Labels, SumMetric


class _LabelMetric(SumMetric):
    """Statistics [rows, 3 x labels]: for each label, whether the row is a hit, predicted, gold."""

    definition: ClassVar[str]  # in the signature

    @abstractmethod
    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        """All [resamples, labels] -> [resamples]."""

    def signature(self, labels: Labels) -> str:
        return f"labels:{len(labels or ())}|{self.definition}"

    def statistics(
        self, systems: Sequence[Sequence[str]], references: Sequence[str]
    ) -> list[Array]:
        seen = {text for texts in (references, *systems) for text in texts}
        number_of = {name: n for n, name in enumerate(sorted(set().union(*map(_split, seen))))}

        def hot(texts: Sequence[str]) -> Array:  # [rows, labels]: 1 at the labels of each row
            columns = np.zeros((len(texts), len(number_of)))
            for row, text in enumerate(texts):
                columns[row, [number_of[name] for name in _split(text)]] = 1.0
            return columns

        gold = hot(references)
        return [np.concatenate([x * gold, x, gold], axis=1) for x in map(hot, systems)]

    def from_sums(self, sums: Array) -> Array:
        hits, predicted, gold = np.split(sums, 3, axis=1)
        return self.from_counts(hits, predicted, gold)


class Accuracy(_LabelMetric):
    """Share of rows with the right label, 0-100."""

    name, label, unit = "accuracy", "accuracy", "%"
    definition = "scale:0-100"
    has_exact_test = True

    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        return 100.0 * hits.sum(axis=1) / gold.sum(axis=1)

    def right(self, statistics: Array) -> NDArray[np.bool_]:
        hits: Array = statistics[:, : statistics.shape[1] // 3]
        return hits.sum(axis=1) > 0


class MacroF1(_LabelMetric):
    """Mean F1 of the labels, 0-100."""

    name, label, unit = "macro_f1", "macro F1", "%"
    definition = "average:macro,labels seen|undefined:0|scale:0-100"

    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        either = predicted + gold
        seen = either > 0  # predicted or gold at least once
        f1 = 2.0 * hits / np.where(seen, either, 1.0)
        return 100.0 * f1.sum(axis=1) / np.maximum(seen.sum(axis=1), 1)


class MicroF1(_LabelMetric):
    """F1 of all labels together, 0-100."""

    name, label, unit = "micro_f1", "micro F1", "%"
    definition = "average:micro|undefined:0|scale:0-100"

    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        either = (predicted + gold).sum(axis=1)
        return 200.0 * hits.sum(axis=1) / np.maximum(either, 1.0)


class Matthews(_LabelMetric):
    """Matthews correlation, -1 to 1."""

    name, label, digits, scale = "mcc", "MCC", 4, 2.0
    definition = "multiclass:Gorodkin 2004|undefined:0|scale:-1-1"
    floor = 0.0

    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        correct, rows = hits.sum(axis=1), gold.sum(axis=1)
        covariance = correct * rows - (predicted * gold).sum(axis=1)
        spread = (rows**2 - (predicted**2).sum(axis=1)) * (rows**2 - (gold**2).sum(axis=1))
        defined = spread > 0
        return np.where(defined, covariance / np.sqrt(np.where(defined, spread, 1.0)), 0.0)


def _split(text: str) -> list[str]:
    return text.split("\t") if text else []
