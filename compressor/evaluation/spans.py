"""Exact match and F1 of answers, as the official script of SQuAD 2.0 counts them.

A reference is the JSON list of the right answers that `compressor.tasks.question_answering.rows`
makes; the one that fits best counts. Where there are none, only the empty answer is right.

That script's words are what spaces separate. Of right answers in a script without spaces, words are
`compressor.evaluation.scripts.words`, for which an answer's F1 is that of its characters, as in the
script of MLQA (Lewis et al. 2020) for Chinese, and all punctuation counts as none.
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
from compressor.tasks.question_answering.rows import answers_of

CHARACTERS = "characters"  # the tokenizer of scripts without spaces
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class _AnswerMetric(MeanMetric):
    unit = "%"

    @abstractmethod
    def fit(self, answer: list[str], gold: list[str]) -> float:
        """Of an answer to one that is right, both as `normalized`."""

    def signature(self, labels: Labels) -> str:
        how = "words:characters" if self.tokenizer else "definition:SQuAD 2.0"
        return f"{how}|scale:0-100"

    def choose_tokenizer(self, references: Sequence[str]) -> ChosenTokenizer:
        """SQuAD's, but where right answers have no spaces."""
        found = shares(text for reference in references for text, _ in answers_of(reference))
        unspaced = {script: share for script, share in found.items() if script in UNSPACED}
        if not unspaced:
            return ChosenTokenizer()
        script, share = next(iter(unspaced.items()))
        return ChosenTokenizer(
            CHARACTERS,
            f"{self.label} counts characters instead of words, since {100 * share:.0f}% of the "
            f"right answers' letters are {script}",
        )

    def words(self, text: str) -> list[str]:
        return words(text) if self.tokenizer else normalized(text)

    def read(self, reference: str) -> list[list[str]]:
        """The right answers of a row as words; one without words for none."""
        found = [self.words(text) for text, _ in answers_of(reference)]
        return [x for x in found if x] or [[]]

    def worth(self, answer: str, reference: list[list[str]]) -> float:
        return max(self.fit(self.words(answer), one) for one in reference)


class ExactMatch(_AnswerMetric):
    """Share of answers that are a right one, 0-100."""

    name, label = "exact_match", "exact match"
    has_exact_test = True

    def fit(self, answer: list[str], gold: list[str]) -> float:
        return float(answer == gold)

    def right(self, statistics: Array) -> NDArray[np.bool_]:
        return statistics[:, 0] > 0


class AnswerF1(_AnswerMetric):
    """Mean F1 of the words of answers and right ones, 0-100."""

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
