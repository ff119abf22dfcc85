"""ROUGE of summaries, computed by the package rouge-score; 0-100, the mean F1 of all rows.

Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries": ROUGE-1 and ROUGE-2 count the
words and pairs of words that summary and reference share, ROUGE-Lsum their longest common
subsequences, sentence by sentence. Words are stemmed, as papers do. Sentences of ROUGE-Lsum are
lines: for a text on one line it is nearly ROUGE-L.

rouge-score's own tokenizer reads only the letters a to z and digits. For references in other
scripts than Latin, words are those of `compressor.evaluation.scripts.words`, which are not stemmed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from compressor.errors import EnvironmentProblem, InputError
from compressor.evaluation.metric import ChosenTokenizer, Labels, MeanMetric
from compressor.evaluation.scripts import LATIN, shares, words

UNICODE = "unicode"  # the tokenizer of other scripts than Latin


class _Words:
    """A tokenizer of rouge-score's form."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)


class _Rouge(MeanMetric):
    variant: ClassVar[str]  # its name in rouge-score
    deals, floor_rows = 1, 2_000  # as for translations

    def choose_tokenizer(self, references: Sequence[str]) -> ChosenTokenizer:
        """rouge-score's own, unless a tenth of the references' letters is of another script."""
        others = ((script, x) for script, x in shares(references).items() if script != LATIN)
        script, share = next(others, ("", 0.0))
        if not script:
            return ChosenTokenizer()
        return ChosenTokenizer(
            UNICODE,
            f"ROUGE counts words of all scripts without stemming, since {100 * share:.0f}% of the "
            f"references' letters are {script}, and rouge-score reads only a to z",
        )

    def require_references(self, references: Sequence[str]) -> None:
        _package()
        if not any(unicodedata.category(x)[0] in "LN" for text in references for x in text):
            raise InputError(
                "no reference summary has a letter or a digit, which ROUGE needs; give other test "
                "rows, or none",
                id="rouge-reads-nothing",
            )

    def signature(self, labels: Labels) -> str:
        how = "stemmer:porter|tokens:a-z0-9"
        if self.tokenizer:
            how = "stemmer:none|tokens:words, characters without spaces"
        return f"f1:mean|{how}|rouge-score:{_package()[1]}"

    @cached_property
    def _scorer(self) -> Any:
        tokenizer = _Words() if self.tokenizer else None
        return _package()[0].RougeScorer([self.variant], use_stemmer=True, tokenizer=tokenizer)

    def read(self, reference: str) -> str:
        return reference

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
    """Longest common subsequences of the lines."""

    name, variant, label = "rougelsum", "rougeLsum", "ROUGE-Lsum"

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
