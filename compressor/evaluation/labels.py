"""Metrics of labels of texts (by scikit-learn's definitions) and of words (by seqeval's)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from compressor.evaluation.metric import Array, Labels, RowMetric, SumMetric, Texts
from compressor.runtime.token_classifier import OUTSIDE


class _LabelMetric(SumMetric):
    """Of texts: an output is a label, or any number of labels separated by tabs.

    Statistics [rows, 3 x labels]: for each label, whether the row is a hit, predicted, gold.
    """

    @abstractmethod
    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        """All [resamples, labels] -> [resamples]."""

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

    name, label, unit = "accuracy", "accuracy", "%"
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
    """Mean F1 of the labels that are gold or predicted, 0-100; 0 of one without a correct row."""

    name, label, unit = "macro_f1", "macro F1", "%"
    definition = "average:macro,labels seen|undefined:0|scale:0-100"

    @override
    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        either = predicted + gold
        seen = either > 0  # predicted or gold at least once
        f1 = 2.0 * hits / np.where(seen, either, 1.0)
        return 100.0 * f1.sum(axis=1) / np.maximum(seen.sum(axis=1), 1)


class MicroF1(_LabelMetric):
    """F1 of all labels together, 0-100."""

    name, label, unit = "micro_f1", "micro F1", "%"
    definition = "average:micro|undefined:0|scale:0-100"

    @override
    def from_counts(self, hits: Array, predicted: Array, gold: Array) -> Array:
        either = (predicted + gold).sum(axis=1)
        return 200.0 * hits.sum(axis=1) / np.maximum(either, 1.0)


class Matthews(_LabelMetric):
    """Matthews correlation, -1 to 1, as Gorodkin 2004 generalizes it; 0 where undefined."""

    name, label, digits, scale = "mcc", "MCC", 4, 2.0
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
    return text.split("\t") if text else []


class _TagMetric(RowMetric):
    """Of words: outputs and references are the labels of a sentence's words, joined by spaces.

    Labels that lack at an output's end, of words beyond the model's limit, count as O. The score is
    the first count over the mean of those in `wholes`, 0-100; 0 where these are 0.
    """

    unit = "%"
    wholes: ClassVar[tuple[int, ...]] = (1,)

    @override
    def read(self, reference: str) -> list[str]:
        return reference.split()

    @override
    def counts(self, answer: str, reference: list[str]) -> Sequence[float]:
        labels = answer.split()
        return self.of(labels + [OUTSIDE] * (len(reference) - len(labels)), reference)

    @abstractmethod
    def of(self, answer: list[str], reference: list[str]) -> Sequence[float]:
        """Counts of one sentence's labels, the right ones first."""

    @override
    def from_sums(self, sums: Array) -> Array:
        whole = sums[:, list(self.wholes)].sum(axis=1)
        return 100.0 * len(self.wholes) * sums[:, 0] / np.maximum(whole, 1.0)


class EntityPrecision(_TagMetric):
    """Share of the predicted entities that are correct: of which words and type are."""

    name, label = "entity_precision", "entity precision"
    definition = "entities:seqeval default|average:micro|undefined:0|scale:0-100"

    @override
    def of(self, answer: list[str], reference: list[str]) -> Sequence[float]:
        predicted, gold = set(seqeval_entities(answer)), set(seqeval_entities(reference))
        return len(predicted & gold), len(predicted), len(gold)


class EntityRecall(EntityPrecision):
    """Share of the gold entities that are predicted."""

    name, label = "entity_recall", "entity recall"
    wholes = (2,)


class EntityF1(EntityPrecision):
    """Harmonic mean of precision and recall."""

    name, label = "entity_f1", "entity F1"
    wholes = (1, 2)


class TokenAccuracy(_TagMetric):
    """Share of words with the correct label."""

    name, label = "token_accuracy", "token accuracy"
    definition = "words:all|scale:0-100"

    @override
    def of(self, answer: list[str], reference: list[str]) -> Sequence[float]:
        return sum(map(str.__eq__, answer, reference)), len(reference)


def seqeval_entities(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Type, first and last word of each entity, as from seqeval's `get_entities` by default.

    A label's first character is its prefix, the rest is the type. Prefixes that seqeval does not
    know, such as L and U of BILOU, continue an entity of the same type, so two adjacent units are
    one; the runtime (`compressor.runtime.token_classifier`) separates them.
    """
    entities: list[tuple[str, int, int]] = []
    before, type_before, first = OUTSIDE, "", 0
    for number, label in enumerate([*labels, OUTSIDE]):
        letter, kind = label[0], label[1:].split("-", 1)[-1] or "_"
        changes = kind != type_before
        ends = before in "ES" or (before in "BI" and letter in "BSO")
        if ends or (changes and before not in "O."):
            entities.append((type_before, first, number - 1))
        starts = letter in "BS" or (before in "ESO" and letter in "EI")
        if starts or (changes and letter not in "O."):
            first = number
        before, type_before = letter, kind
    return entities
