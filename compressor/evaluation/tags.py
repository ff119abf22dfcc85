"""Metrics of the labels of a sentence's words, by seqeval's definitions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compressor.evaluation.metric import Array, RowMetric
from compressor.runtime.token_classifier import OUTSIDE


class _TagMetric(RowMetric):
    """Metrics of words: a text is the labels of a sentence's words, joined by spaces.

    Labels that an output lacks at its end, those of words beyond the model's limit, count as O. The
    score is the first count over the mean of those in `wholes`, 0-100; 0 where these are 0.
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
        """Count in one sentence.

        Args:
            answer: labels of its words.
            reference: gold labels of its words.

        Returns:
            The number of correct ones, and the numbers that `wholes` refers to.
        """

    @override
    def from_sums(self, sums: Array) -> Array:
        whole = sums[:, list(self.wholes)].sum(axis=1)
        return 100.0 * len(self.wholes) * sums[:, 0] / np.maximum(whole, 1.0)


class EntityPrecision(_TagMetric):
    """Share of the predicted entities whose words and type are correct, 0-100; 0 without any."""

    name, label = "entity_precision", "entity precision"
    definition = "entities:seqeval default|average:micro|undefined:0|scale:0-100"

    @override
    def of(self, answer: list[str], reference: list[str]) -> Sequence[float]:
        predicted, gold = set(seqeval_entities(answer)), set(seqeval_entities(reference))
        return len(predicted & gold), len(predicted), len(gold)


class EntityRecall(EntityPrecision):
    """Share of the gold entities that are predicted, 0-100; 0 without any."""

    name, label = "entity_recall", "entity recall"
    wholes = (2,)


class EntityF1(EntityPrecision):
    """Harmonic mean of precision and recall, 0-100; 0 without any entity."""

    name, label = "entity_f1", "entity F1"
    wholes = (1, 2)


class TokenAccuracy(_TagMetric):
    """Share of words with the correct label, 0-100."""

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
    before = OUTSIDE
    type_before = ""
    first = 0
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
