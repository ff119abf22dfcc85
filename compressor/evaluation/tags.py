"""Entities and words with the right label, by counts of each sentence.

Answers and references are the labels of a sentence's words, joined by spaces. Entities are those of
`compressor.runtime.entities.entity_runs`; one is right where its words and its type are. That is
the definition of the package seqeval in its default mode (with which the tests compare), and of the
CoNLL-2003 script. Labels that an answer lacks at its end, of words that the model could not read,
count as O.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from compressor.errors import InputError
from compressor.evaluation.metric import Array, Labels, SumMetric
from compressor.runtime.entities import OUTSIDE, entity_runs


class _TagMetric(SumMetric):
    unit = "%"

    @abstractmethod
    def count(self, answer: list[str], reference: list[str]) -> Sequence[int]:
        """What is summed up, of one sentence's labels."""

    def require(self, answers: Sequence[str], references: Sequence[str], labels: Labels) -> None:
        for row, (answer, reference) in enumerate(zip(answers, references, strict=True), 1):
            given, wanted = len(answer.split()), len(reference.split())
            if given > wanted or not wanted:
                raise InputError(
                    f"row {row} has {given} labels in the answer and {wanted} in the reference; "
                    "give one for each word",
                    id="tags-do-not-match-words",
                )

    def statistics(
        self, systems: Sequence[Sequence[str]], references: Sequence[str], labels: Labels
    ) -> list[Array]:
        """[rows, counts]"""
        gold = [reference.split() for reference in references]
        return [
            np.array(
                [
                    self.count(_filled(answer.split(), len(right)), right)
                    for answer, right in zip(answers, gold, strict=True)
                ],
                dtype=np.float64,
            )
            for answers in systems
        ]


class _EntityMetric(_TagMetric):
    """Counts: right entities, those of the answer, those of the reference."""

    def count(self, answer: list[str], reference: list[str]) -> Sequence[int]:
        found, wanted = set(entity_runs(answer)), set(entity_runs(reference))
        return len(found & wanted), len(found), len(wanted)

    def signature(self, labels: Labels) -> str:
        return "entities:seqeval default|average:micro|undefined:0|scale:0-100"

    @abstractmethod
    def parts(self, found: Array, wanted: Array) -> tuple[float, Array]:
        """Numerator's factor of the right ones, and the denominator [resamples]."""

    def from_sums(self, sums: Array) -> Array:
        right, found, wanted = sums.T
        factor, whole = self.parts(found, wanted)
        return 100.0 * factor * right / np.where(whole > 0, whole, 1.0)


class EntityF1(_EntityMetric):
    """Harmonic mean of precision and recall, 0-100; 0 without any entity."""

    name, label = "entity_f1", "entity F1"

    def parts(self, found: Array, wanted: Array) -> tuple[float, Array]:
        return 2.0, found + wanted


class EntityPrecision(_EntityMetric):
    """Share of the answers' entities that are right, 0-100; 0 without any."""

    name, label = "entity_precision", "entity precision"

    def parts(self, found: Array, wanted: Array) -> tuple[float, Array]:
        return 1.0, found


class EntityRecall(_EntityMetric):
    """Share of the references' entities that are found, 0-100; 0 without any."""

    name, label = "entity_recall", "entity recall"

    def parts(self, found: Array, wanted: Array) -> tuple[float, Array]:
        return 1.0, wanted


class TokenAccuracy(_TagMetric):
    """Share of words with the right label, 0-100."""

    name, label = "token_accuracy", "token accuracy"

    def signature(self, labels: Labels) -> str:
        return "words:all|scale:0-100"

    def count(self, answer: list[str], reference: list[str]) -> Sequence[int]:
        return sum(map(str.__eq__, answer, reference)), len(reference)

    def from_sums(self, sums: Array) -> Array:
        right, words = sums.T
        return 100.0 * right / words


def _filled(labels: list[str], words: int) -> list[str]:
    return labels + [OUTSIDE] * (words - len(labels))
