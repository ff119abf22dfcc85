"""Entity and token metrics, from counts of each sentence.

Outputs and references are the labels of a sentence's words, joined by spaces. An entity is correct
if its words and its type are. Entities are those of the package seqeval in its default mode, with
which the tests compare: for IOB, IOE and IOBES as in the CoNLL-2003 script. Prefixes that seqeval
does not know, such as L and U of BILOU, continue an entity of the same type, so two adjacent units
are one entity; the runtime (`compressor.runtime.token_classifier`) separates them. Missing labels
at the end of an output, for words beyond the model's limit, count as O.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from compressor.evaluation.metric import Array, Labels, SumMetric
from compressor.runtime.token_classifier import OUTSIDE


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

        def counts(answer: str, right: list[str]) -> Sequence[int]:
            labels = answer.split()
            return self.count(labels + [OUTSIDE] * (len(right) - len(labels)), right)

        return [
            np.array([counts(*pair) for pair in zip(answers, gold, strict=True)], dtype=np.float64)
            for answers in systems
        ]


class _EntityMetric(_TagMetric):
    """Counts: correct entities, predicted entities, gold entities."""

    def count(self, answer: list[str], reference: list[str]) -> Sequence[int]:
        predicted, gold = set(seqeval_entities(answer)), set(seqeval_entities(reference))
        return len(predicted & gold), len(predicted), len(gold)

    def signature(self, labels: Labels) -> str:
        return "entities:seqeval default|average:micro|undefined:0|scale:0-100"


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

    def signature(self, labels: Labels) -> str:
        return "words:all|scale:0-100"

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
