"""Metrics of answers to questions, as the official script of SQuAD 2.0 computes them."""

from __future__ import annotations

import re
import string
from abc import abstractmethod
from collections import Counter

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from compressor.evaluation.metric import Array, Labels, MeanMetric, Texts
from compressor.evaluation.words import UNSPACED, shares, words
from compressor.tasks.question_answering import answers_of

CHARACTERS = "characters"  # the tokenizer of scripts without spaces
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class _AnswerMetric(MeanMetric):
    """Metrics of an answer's words, with the best match among the correct answers.

    SQuAD's words are separated by spaces. In scripts without spaces they are characters, as in the
    script of MLQA (Lewis et al. 2020) for Chinese, without punctuation.
    """

    unit = "%"

    @abstractmethod
    def fit(self, answer: list[str], gold: list[str]) -> float:
        """The score of an answer, compared with one correct answer.

        Args:
            answer: words.
            gold: words of the correct answer.

        Returns:
            A number from 0 to 1.
        """

    @override
    def signature(self, labels: Labels) -> str:
        how = "words:characters" if self.tokenizer else "definition:SQuAD 2.0"
        return f"{how}|scale:0-100"

    @override
    def choose_tokenizer(self, references: Texts) -> tuple[str, str]:
        texts = (text for reference in references for text, _ in answers_of(reference))
        for script, share in shares(texts).items():
            if script in UNSPACED:
                return CHARACTERS, (
                    f"{self.label} counts characters instead of words, since {100 * share:.0f}% of "
                    f"the correct answers' letters are {script}"
                )
        return "", ""

    def words(self, text: str) -> list[str]:
        """The words of an answer, as the chosen tokenizer has them."""
        return words(text) if self.tokenizer else normalized(text)

    def read(self, reference: str) -> list[list[str]]:
        """The correct answers of a row as words; an empty one if the row has none."""
        answers = [self.words(text) for text, _ in answers_of(reference)]
        return [answer for answer in answers if answer] or [[]]

    @override
    def row_score(self, answer: str, reference: list[list[str]]) -> float:
        return max(self.fit(self.words(answer), one) for one in reference)


class ExactMatch(_AnswerMetric):
    """Share of answers that equal a correct one, 0-100."""

    name, label = "exact_match", "exact match"
    has_exact_test = True

    @override
    def fit(self, answer: list[str], gold: list[str]) -> float:
        return float(answer == gold)

    @override
    def right(self, statistics: Array) -> NDArray[np.bool_]:
        return statistics[:, 0] > 0


class AnswerF1(_AnswerMetric):
    """Mean F1 of the words of answers and correct ones, 0-100."""

    name, label = "answer_f1", "answer F1"

    @override
    def fit(self, answer: list[str], gold: list[str]) -> float:
        if not answer or not gold:
            return float(answer == gold)
        shared = sum((Counter(answer) & Counter(gold)).values())
        return 2 * shared / (len(answer) + len(gold))


def normalized(text: str) -> list[str]:
    """The words of an answer without case, punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()
