"""ROUGE of summaries, computed by the package rouge-score.

Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries".
"""

from __future__ import annotations

from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

from typing_extensions import override

from compressor.errors import EnvironmentProblem
from compressor.evaluation.metric import Labels, MeanMetric, Texts
from compressor.evaluation.words import LATIN, shares, words

UNICODE = "unicode"  # the tokenizer of other scripts than Latin


class _Rouge(MeanMetric):
    """Mean F1 over all rows, 0-100; words are stemmed, as papers do.

    rouge-score's tokenizer reads only the letters a to z and digits; where a tenth of the
    references' letters is of another script than Latin, words are those of `words`, not stemmed.
    """

    variant: ClassVar[str]  # its name in rouge-score
    random_orders, floor_rows = 1, 2_000  # as for translations

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
    """F1 of the words that output and reference have in common."""

    name = variant = "rouge1"
    label = "ROUGE-1"


class Rouge2(_Rouge):
    """F1 of the pairs of successive words that they have in common."""

    name = variant = "rouge2"
    label = "ROUGE-2"


class RougeLsum(_Rouge):
    """F1 of longest common subsequences, line by line; for a text on one line nearly ROUGE-L."""

    name = "rougelsum"
    variant = "rougeLsum"
    label = "ROUGE-Lsum"

    @override
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
            "`pip install 'rouge-score>=0.1.2,<0.2'`",
            id="rouge-score-not-installed",
        ) from error
    return rouge_scorer, version("rouge-score")
