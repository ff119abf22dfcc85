"""Exact match and F1 of answers, as the official script of SQuAD 2.0 computes them.

A reference is a JSON list of correct answers from `compressor.tasks.question_answering`; the
best match counts. For an empty list, only the empty answer is correct.

SQuAD's words are separated by spaces. For correct answers in a script without spaces, words are
those of `compressor.evaluation.scripts.words`, so F1 is computed on characters, as in the script of
MLQA (Lewis et al. 2020) for Chinese, without punctuation.
"""

from __future__ import annotations

import re
import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compressor.evaluation.metric import Array, ChosenTokenizer, Labels, MeanMetric
from compressor.evaluation.scripts import UNSPACED, shares, words
from compressor.tasks.question_answering import answers_of

CHARACTERS = "characters"  # the tokenizer of scripts without spaces
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class _AnswerMetric(MeanMetric):
    unit = "%"

    @abstractmethod
    def fit(self, answer: list[str], gold: list[str]) -> float:
        """The score of an answer for one correct answer, both as words."""

    def signature(self, labels: Labels) -> str:
        how = "words:characters" if self.tokenizer else "definition:SQuAD 2.0"
        return f"{how}|scale:0-100"

    def choose_tokenizer(self, references: Sequence[str]) -> ChosenTokenizer:
        """SQuAD's, except for correct answers in scripts without spaces."""
        texts = (text for reference in references for text, _ in answers_of(reference))
        unspaced = ((script, x) for script, x in shares(texts).items() if script in UNSPACED)
        script, share = next(unspaced, ("", 0.0))
        if not script:
            return ChosenTokenizer()
        return ChosenTokenizer(
            CHARACTERS,
            f"{self.label} counts characters instead of words, since {100 * share:.0f}% of the "
            f"correct answers' letters are {script}",
        )

    def words(self, text: str) -> list[str]:
        return words(text) if self.tokenizer else normalized(text)

    def read(self, reference: str) -> list[list[str]]:
        """The correct answers of a row as words; an empty one if the row has none."""
        answers = [self.words(text) for text, _ in answers_of(reference)]
        return [answer for answer in answers if answer] or [[]]

    def row_score(self, answer: str, reference: list[list[str]]) -> float:
        return max(self.fit(self.words(answer), one) for one in reference)


class ExactMatch(_AnswerMetric):
    """Share of answers that equal a correct one, 0-100."""

    name, label = "exact_match", "exact match"
    has_exact_test = True

    def fit(self, answer: list[str], gold: list[str]) -> float:
        return float(answer == gold)

    def right(self, statistics: Array) -> NDArray[np.bool_]:
        return statistics[:, 0] > 0


class AnswerF1(_AnswerMetric):
    """Mean F1 of the words of answers and correct ones, 0-100."""

    name, label = "answer_f1", "answer F1"

    def fit(self, answer: list[str], gold: list[str]) -> float:
        if not answer or not gold:
            return float(answer == gold)
        shared = sum((Counter(answer) & Counter(gold)).values())
        return 2 * shared / (len(answer) + len(gold))


def normalized(text: str) -> list[str]:
    """The words of an answer without case, punctuation and articles.

    >>> normalized("The  U.S. Army!")
    ['us', 'army']
    """
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()
