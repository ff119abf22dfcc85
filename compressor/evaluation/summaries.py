"""ROUGE of summaries, computed by the package rouge-score; 0-100, the mean F1 of all rows.

Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries": ROUGE-1 and ROUGE-2 count the
words and pairs of words that summary and reference share, ROUGE-Lsum their longest common
subsequences, sentence by sentence. Words are stemmed, as papers do. The sentences of ROUGE-Lsum are
lines: a text on one line is one sentence, and its ROUGE-Lsum is nearly ROUGE-L.

rouge-score's own tokenizer reads the letters a to z and digits alone. For references in other
scripts than Latin, words are those of `compressor.evaluation.scripts.words`: not stemmed, and each
character of a script without spaces is one.
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
_PORTER = "stemmer:porter|tokens:a-z0-9"
_UNICODE = "stemmer:none|tokens:words, characters without spaces"


class _Words:
    """A tokenizer of rouge-score's form."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)


class _Rouge(MeanMetric):
    """F1.

    Args:
        variant: name that rouge-score has for it.
    """

    variant: ClassVar[str]
    deals, floor_rows = 1, 2_000  # as for translations

    def choose_tokenizer(self, references: Sequence[str]) -> ChosenTokenizer:
        """rouge-score's own, but where a tenth of the references' letters is not Latin."""
        found = {script: share for script, share in shares(references).items() if script != LATIN}
        if not found:
            return ChosenTokenizer()
        script, share = next(iter(found.items()))
        return ChosenTokenizer(
            UNICODE,
            f"ROUGE counts words of all scripts, which are not stemmed, since {100 * share:.0f}% "
            f"of the references' letters are {script}, and rouge-score reads a to z alone",
        )

    def require_references(self, references: Sequence[str]) -> None:
        _package()
        if not any(unicodedata.category(x)[0] in "LN" for text in references for x in text):
            raise InputError(
                "no reference summary has a letter or a digit, and ROUGE reads nothing else; give "
                "other test rows, or none",
                id="rouge-reads-nothing",
            )

    def signature(self, labels: Labels) -> str:
        how = _UNICODE if self.tokenizer else _PORTER
        return f"f1:mean|{how}|rouge-score:{_package()[1]}"

    @cached_property
    def _scorer(self) -> Any:
        own = _Words() if self.tokenizer else None
        return _package()[0].RougeScorer([self.variant], use_stemmer=True, tokenizer=own)

    def read(self, reference: str) -> str:
        return reference

    def worth(self, answer: str, reference: str) -> float:
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
    """rouge-score's module with the scorer, and its version.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    from importlib.metadata import version

    try:
        from rouge_score import rouge_scorer
    except ImportError as error:
        raise EnvironmentProblem(
            "the package rouge-score, which scores summaries, is not installed; install it with "
            "`pip install 'compress-heads[summarization]'` or "
            "`pip install 'rouge-score>=0.1.2,<0.2'`",
            id="rouge-score-not-installed",
        ) from error
    return rouge_scorer, version("rouge-score")
