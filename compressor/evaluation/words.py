"""Words of texts in any script, and metrics of answers and summaries, means over all rows."""

from __future__ import annotations

import re
import string
import unicodedata
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from compressor.errors import EnvironmentProblem
from compressor.evaluation.metric import Array, Labels, MeanMetric, Texts
from compressor.tasks.question_answering import answers_of

HAN, KANA, HANGUL, LATIN = "Han", "kana", "Hangul", "Latin"
# First words of Unicode's character names, which begin with the script.
_NAMED = {
    "CJK": HAN,
    "IDEOGRAPHIC": HAN,
    "HIRAGANA": KANA,
    "KATAKANA": KANA,
    "KATAKANA-HIRAGANA": KANA,
    "HANGUL": HANGUL,
    "MYANMAR": "Burmese",
    "TAI": "Tai Tham",
}
_WIDTHS = ("HALFWIDTH", "FULLWIDTH")
UNSPACED = frozenset(
    (HAN, KANA, "Thai", "Lao", "Khmer", "Burmese", "Tibetan", "Javanese", "Balinese", "Tai Tham")
)
ENOUGH = 0.1  # least share of the letters for a script to count


def script_of(character: str) -> str:
    """The script of a letter, such as `Thai`; for other characters any word."""
    words = unicodedata.name(character, "?").split()
    first = words[1] if words[0] in _WIDTHS else words[0]
    return _NAMED.get(first, first.capitalize())


def shares(texts: Iterable[str]) -> dict[str, float]:
    """Script -> its share of the letters of some texts, if at least `ENOUGH`."""
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    letters: Counter[str] = Counter()
    for character, count in characters.items():
        if unicodedata.category(character).startswith("L"):
            letters[script_of(character)] += count
    total = letters.total()
    return {name: n / total for name, n in letters.most_common() if n >= ENOUGH * total}


def words(text: str) -> list[str]:
    """Words of a text of any script, in lower case: runs of letters, marks and digits.

    In a script without spaces each character is a word, with its combining marks.
    """
    split: list[str] = []
    inside = False  # a word that the next letter continues
    for character in text.lower():
        kind = unicodedata.category(character)[0]
        if kind not in "LMN":
            inside = False
            continue
        alone = kind == "L" and script_of(character) in UNSPACED
        if split and (kind == "M" or (inside and not alone)):
            split[-1] += character
        else:
            split.append(character)
        inside = not alone
    return split


CHARACTERS = "characters"  # the tokenizer of scripts without spaces
UNICODE = "unicode"  # the tokenizer of other scripts than Latin
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class _AnswerMetric(MeanMetric):
    """As the official script of SQuAD 2.0 computes it, with the best match of the correct answers.

    SQuAD's words are separated by spaces. In scripts without spaces they are characters, as in the
    script of MLQA (Lewis et al. 2020) for Chinese, without punctuation.
    """

    unit = "%"

    @abstractmethod
    def fit(self, answer: list[str], gold: list[str]) -> float:
        """The score of an answer for one correct answer, both as words."""

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


class _Rouge(MeanMetric):
    """Mean F1, computed by the package rouge-score. Words are stemmed, as papers do.

    Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries". rouge-score's tokenizer
    reads only the letters a to z and digits; where a tenth of the references' letters is of another
    script than Latin, words are those of `words`, not stemmed.
    """

    variant: ClassVar[str]  # its name in rouge-score
    deals, floor_rows = 1, 2_000  # as for translations

    @override
    def choose_tokenizer(self, references: Texts) -> tuple[str, str]:
        for script, share in shares(references).items():
            if script != LATIN:
                return UNICODE, (
                    "ROUGE counts words of all scripts without stemming, since "
                    f"{100 * share:.0f}% of the references' letters are {script}, and rouge-score "
                    "reads only a to z"
                )
        return "", ""

    @override
    def require_package(self) -> None:
        _package()

    @override
    def signature(self, labels: Labels) -> str:
        how = "stemmer:porter|tokens:a-z0-9"
        if self.tokenizer:
            how = "stemmer:none|tokens:words, characters without spaces"
        return f"f1:mean|{how}|rouge-score:{_package()[1]}"

    @cached_property
    def _scorer(self) -> Any:
        tokenizer = SimpleNamespace(tokenize=words) if self.tokenizer else None
        return _package()[0].RougeScorer([self.variant], use_stemmer=True, tokenizer=tokenizer)

    @override
    def row_score(self, answer: str, reference: str) -> float:
        return float(self._scorer.score(reference, answer)[self.variant].fmeasure)


class Rouge1(_Rouge):
    """Words in common."""

    name = variant = "rouge1"
    label = "ROUGE-1"


class Rouge2(_Rouge):
    """Pairs of successive words in common."""

    name = variant = "rouge2"
    label = "ROUGE-2"


class RougeLsum(_Rouge):
    """Longest common subsequences, line by line: of a text on one line it is nearly ROUGE-L."""

    name, variant, label = "rougelsum", "rougeLsum", "ROUGE-Lsum"

    @override
    def signature(self, labels: Labels) -> str:
        return f"sentences:lines|{super().signature(labels)}"


def _package() -> tuple[Any, str]:
    """rouge-score's module with the scorer, and its version."""
    from importlib.metadata import version

    try:
        from rouge_score import rouge_scorer
    except ImportError as error:
        raise EnvironmentProblem(
            "the package rouge-score, which scores summaries, is not installed; install it with "
            "`pip install 'rouge-score>=0.1.2,<0.2'`",
            id="rouge-score-not-installed",
        ) from error
    return rouge_scorer, version("rouge-score")
