"""Metrics of labels of texts, by scikit-learn's definitions.

Scores are computed from confusion counts, for many resamples at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from compressor.evaluation.metric import Array, Labels, SumMetric, Texts


class _LabelMetric(SumMetric):
    """Metrics of texts: an output is a label, or any number of labels separated by tabs.

    Statistics [rows, 3 x labels]: for each label, whether the row is a hit, predicted, gold.
    """

    @abstractmethod
    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        """Scores from counts of hits, predictions and gold labels, [resamples, labels] each.

        Returns:
            [resamples].
        """

    @override
    def signature(self, labels: Labels) -> str:
        return f"labels:{len(labels or ())}|{self.definition}"

    @override
    def statistics(self, systems: Sequence[Texts], references: Texts) -> list[Array]:
        seen = {text for texts in (references, *systems) for text in texts}
        number_of = {name: n for n, name in enumerate(sorted(set().union(*map(_split, seen))))}

        def hot(texts: Texts) -> Array:  # [rows, labels]: 1 at the labels of each row
            columns = np.zeros((len(texts), len(number_of)))
            for row, text in enumerate(texts):
                columns[row, [number_of[name] for name in _split(text)]] = 1.0
            return columns

        gold = hot(references)
        return [np.concatenate([x * gold, x, gold], axis=1) for x in map(hot, systems)]

    @override
    def from_sums(self, sums: Array) -> Array:
        hits, predicted, gold = np.split(sums, 3, axis=1)
        return self.from_counts(hits, predicted, gold)


class Accuracy(_LabelMetric):
    """Share of rows with the right label, 0-100."""

    name = "accuracy"
    label = "accuracy"
    unit = "%"
    definition = "scale:0-100"
    has_exact_test = True

    @override
    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        return 100.0 * hits.sum(axis=1) / gold.sum(axis=1)

    @override
    def right(self, statistics: Array) -> NDArray[np.bool_]:
        hits: Array = statistics[:, : statistics.shape[1] // 3]
        return hits.sum(axis=1) > 0


class MacroF1(_LabelMetric):
    """Mean F1 of the labels that are gold or predicted, 0-100; 0 for one without a correct row."""

    name = "macro_f1"
    label = "macro F1"
    unit = "%"
    definition = "average:macro,labels seen|undefined:0|scale:0-100"

    @override
    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        either = predicted + gold
        seen = either > 0  # predicted or gold at least once
        f1 = 2.0 * hits / np.where(seen, either, 1.0)
        return 100.0 * f1.sum(axis=1) / np.maximum(seen.sum(axis=1), 1)


class MicroF1(_LabelMetric):
    """F1 of all labels together, 0-100."""

    name = "micro_f1"
    label = "micro F1"
    unit = "%"
    definition = "average:micro|undefined:0|scale:0-100"

    @override
    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        either = (predicted + gold).sum(axis=1)
        return 200.0 * hits.sum(axis=1) / np.maximum(either, 1.0)


class Matthews(_LabelMetric):
    """Matthews correlation, -1 to 1, as Gorodkin 2004 generalizes it; 0 where undefined."""

    name = "mcc"
    label = "MCC"
    digits = 4
    scale = 2.0
    definition = "multiclass:Gorodkin 2004|undefined:0|scale:-1-1"
    floor = 0.0

    @override
    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        correct, rows = hits.sum(axis=1), gold.sum(axis=1)
        covariance = correct * rows - (predicted * gold).sum(axis=1)
        spread = (rows**2 - (predicted**2).sum(axis=1)) * (rows**2 - (gold**2).sum(axis=1))
        defined = spread > 0
        return np.where(defined, covariance / np.sqrt(np.where(defined, spread, 1.0)), 0.0)


def _split(text: str) -> list[str]:
    """The labels of an output or a reference."""
    return text.split("\t") if text else []
