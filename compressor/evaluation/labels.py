"""Metrics of labels, from counts of each row, for many resamples at once.

- Of texts: accuracy, F1 and Matthews correlation. An output is a label, or any number of labels
  separated by tabs. Definitions are scikit-learn's (with which the tests compare): macro F1
  averages over the labels that occur in the gold or predicted column, and the F1 of a label without
  a correct row is 0; micro F1 uses the sums of all labels' counts; the correlation is Gorodkin's
  2004 generalization to many labels, 0 where undefined.
- Of words: entity and token metrics. Outputs and references are the labels of a sentence's words,
  joined by spaces. An entity is correct if its words and its type are. Entities are those of the
  package seqeval in its default mode (with which the tests compare): for IOB, IOE and IOBES as in
  the CoNLL-2003 script. Prefixes that seqeval does not know, such as L and U of BILOU, continue an
  entity of the same type, so two adjacent units are one entity; the runtime
  (`compressor.runtime.token_classifier`) separates them. Missing labels at the end of an output,
  for words beyond the model's limit, count as O.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compressor.evaluation.metric import Array, Labels, SumMetric
from compressor.runtime.token_classifier import OUTSIDE


class _LabelMetric(SumMetric):
    """Statistics [rows, 3 x labels]: for each label, whether the row is a hit, predicted, gold."""

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


class _TagMetric(SumMetric):
    """Statistics [rows, counts]."""

    unit = "%"

    @abstractmethod
    def count(self, answer: list[str], reference: list[str]) -> Sequence[int]:
        """Counts of one sentence's labels."""

    def statistics(
        self, systems: Sequence[Sequence[str]], references: Sequence[str]
    ) -> list[Array]:
        gold = [reference.split() for reference in references]
        tables = []
        for answers in systems:
            counts = []
            for labels, right in zip(map(str.split, answers), gold, strict=True):
                counts.append(self.count(labels + [OUTSIDE] * (len(right) - len(labels)), right))
            tables.append(np.array(counts, dtype=np.float64))
        return tables


class _EntityMetric(_TagMetric):
    """Counts: correct entities, predicted entities, gold entities."""

    definition = "entities:seqeval default|average:micro|undefined:0|scale:0-100"

    def count(self, answer: list[str], reference: list[str]) -> Sequence[int]:
        predicted, gold = set(seqeval_entities(answer)), set(seqeval_entities(reference))
        return len(predicted & gold), len(predicted), len(gold)


class EntityF1(_EntityMetric):
    """Harmonic mean of precision and recall, 0-100; 0 without any entity."""

    name, label = "entity_f1", "entity F1"

    def from_sums(self, sums: Array) -> Array:
        right, predicted, gold = sums.T
        return 200.0 * right / np.maximum(predicted + gold, 1.0)


class EntityPrecision(_EntityMetric):
    """Share of the predicted entities that are correct, 0-100; 0 without any."""

    name, label = "entity_precision", "entity precision"

    def from_sums(self, sums: Array) -> Array:
        right, predicted, _ = sums.T
        return 100.0 * right / np.maximum(predicted, 1.0)


class EntityRecall(_EntityMetric):
    """Share of the gold entities that are predicted, 0-100; 0 without any."""

    name, label = "entity_recall", "entity recall"

    def from_sums(self, sums: Array) -> Array:
        right, _, gold = sums.T
        return 100.0 * right / np.maximum(gold, 1.0)


class TokenAccuracy(_TagMetric):
    """Share of words with the correct label, 0-100."""

    name, label = "token_accuracy", "token accuracy"
    definition = "words:all|scale:0-100"

    def count(self, answer: list[str], reference: list[str]) -> Sequence[int]:
        return sum(map(str.__eq__, answer, reference)), len(reference)

    def from_sums(self, sums: Array) -> Array:
        right, words = sums.T
        return 100.0 * right / words


def seqeval_entities(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Type, first and last word of each entity, as from seqeval's `get_entities`.

    A label's first character is its prefix, the rest is the type.
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
