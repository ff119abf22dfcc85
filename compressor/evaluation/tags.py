"""Entities and words with the right label, by counts of each sentence.

Answers and references are the labels of a sentence's words, joined by spaces. An entity is right
where its words and its type are. Entities are those of the package seqeval in its default mode,
with which the tests compare: of IOB, IOE and IOBES as the CoNLL-2003 script counts them. Letters
that it does not know, as L and U of BILOU, only go on or change the type there, so that two units
in a row are one entity; what the runtime answers (`compressor.runtime.entities`) tells them apart.
Labels that an answer lacks at its end, of words that the model could not read, count as O.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from compressor.errors import InputError
from compressor.evaluation.metric import Array, Labels, SumMetric
from compressor.runtime.entities import OUTSIDE


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
        found, wanted = set(seqeval_entities(answer)), set(seqeval_entities(reference))
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


def seqeval_entities(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Type, first and last word of each entity, as seqeval's `get_entities` finds them.

    A label's first character says what it does, the rest is the type.
    """
    found: list[tuple[str, int, int]] = []
    before, type_before, first = OUTSIDE, "", 0
    for number, label in enumerate([*labels, OUTSIDE]):
        letter, kind = label[0], label[1:].split("-", 1)[-1] or "_"
        changes = kind != type_before
        ends = before in "ES" or (before in "BI" and letter in "BSO")
        if ends or (changes and before not in "O."):
            found.append((type_before, first, number - 1))
        starts = letter in "BS" or (before in "ESO" and letter in "EI")
        if starts or (changes and letter not in "O."):
            first = number
        before, type_before = letter, kind
    return found


def _filled(labels: list[str], words: int) -> list[str]:
    return labels + [OUTSIDE] * (words - len(labels))
