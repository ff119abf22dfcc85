"""BLEU and chrF, computed by sacreBLEU, and the same two formulas for many resamples at once.

sacreBLEU turns each sentence into a few counts; the corpus score is a function of their sums.
Counts and point scores come from sacreBLEU itself. For a bootstrap the counts are extracted once
and the two functions are evaluated here on a matrix of sums; the tests compare with sacreBLEU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError, UsageError
from compressor.results import Quality

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

Array = NDArray[np.float64]

_ROWS_PER_CHUNK = 2000


def score_translation(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str | None = None
) -> Quality:
    """Corpus BLEU and chrF (both 0-100) against one reference per sentence.

    Args:
        hypotheses: detokenised translations, in the order of `references`.
        references: detokenised reference translations.
        tokenize: sacreBLEU's tokenizer for BLEU; None is its default, `13a`.

    Raises:
        InputError: no sentences, or different numbers of hypotheses and references.
        UsageError: sacreBLEU has no such tokenizer.
    """
    check_lengths(hypotheses, references)
    statistics = _statistics((hypotheses,), references, tokenize)
    metrics = translation_metrics(references[:1], tokenize)
    return Quality(
        metrics={name: _score(metrics[name], arrays[0]) for name, arrays in statistics.items()},
        signatures={name: str(metric.get_signature()) for name, metric in metrics.items()},
        rows=len(hypotheses),
    )


def check_lengths(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuse data that cannot be scored.

    Raises:
        InputError: nothing to score, or the two sides differ in length.
    """
    if len(hypotheses) != len(references):
        raise InputError(
            f"there are {len(hypotheses)} outputs for {len(references)} references; "
            "give exactly one output per reference, in the same order"
        )
    if not references:
        raise InputError("there are no rows to score; give a test file with at least one row")


def translation_metrics(references: Sequence[str], tokenize: str | None) -> dict[str, Metric]:
    """sacreBLEU's metric objects with these references, by the names used in reports."""
    from sacrebleu.metrics import BLEU, CHRF

    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise UsageError(f"sacreBLEU has no tokenizer {tokenize!r}; choose one of {known}")
    columns = [list(references)]
    return {
        "bleu": BLEU(tokenize=tokenize, references=columns),
        "chrf": CHRF(references=columns),
    }


@dataclass(frozen=True)
class TranslationPair:
    """Sentence statistics of two systems; each row of the test set is its own group.

    `dense` and `pruned` hold, per metric, an array [rows, statistics] of sacreBLEU's counts.
    """

    groups: NDArray[np.intp]  # [rows]
    dense: dict[str, Array]
    pruned: dict[str, Array]
    points: dict[str, tuple[float, float]]  # (dense, pruned) on the whole test set

    @classmethod
    def of(
        cls,
        dense: Sequence[str],
        pruned: Sequence[str],
        references: Sequence[str],
        tokenize: str | None = None,
    ) -> TranslationPair:
        """Extract the statistics of both systems once."""
        statistics = _statistics((dense, pruned), references, tokenize)
        metrics = translation_metrics(references[:1], tokenize)
        return cls(
            groups=np.arange(len(references)),
            dense={name: arrays[0] for name, arrays in statistics.items()},
            pruned={name: arrays[1] for name, arrays in statistics.items()},
            points={
                name: (_score(metrics[name], arrays[0]), _score(metrics[name], arrays[1]))
                for name, arrays in statistics.items()
            },
        )

    @property
    def exact_p(self) -> dict[str, float]:
        """None: no metric of translations has an exact test."""
        return {}

    def scores(self, counts: Array) -> dict[str, tuple[Array, Array]]:
        """Scores of both systems on resampled test sets.

        Args:
            counts: [resamples, rows], how often each row was drawn.

        Returns:
            metric -> (dense, pruned), each [resamples].
        """
        return {
            name: (score(counts @ self.dense[name]), score(counts @ self.pruned[name]))
            for name, score in _VECTORISED.items()
        }


def _statistics(
    systems: Sequence[Sequence[str]], references: Sequence[str], tokenize: str | None
) -> dict[str, list[Array]]:
    """metric -> sacreBLEU's counts [rows, statistics] of each system.

    In chunks, because sacreBLEU keeps all n-grams of all references it is given; with the
    references first, because it then takes them apart once for all systems.
    """
    found: dict[str, list[list[list[int]]]] = {}
    for start in range(0, len(references), _ROWS_PER_CHUNK):
        rows = slice(start, start + _ROWS_PER_CHUNK)
        for name, metric in translation_metrics(references[rows], tokenize).items():
            tables = found.setdefault(name, [[] for _ in systems])
            for table, outputs in zip(tables, systems, strict=True):
                # Private, but what sacreBLEU's own significance tests are built on; the tests
                # compare all that is made from it with sacreBLEU's public functions.
                table.extend(metric._extract_corpus_statistics(outputs[rows], None))
    return {
        name: [np.array(table, dtype=np.float64) for table in tables]
        for name, tables in found.items()
    }


def _score(metric: Metric, statistics: Array) -> float:
    sums = [int(total) for total in statistics.sum(axis=0)]
    return float(metric._compute_score_from_stats(sums).score)


def bleu_from_sums(sums: Array) -> Array:
    """Corpus BLEU (0-100) with sacreBLEU's default "exp" smoothing.

    Args:
        sums: [resamples, 10]: output length, reference length, 4 matches, 4 totals.

    Returns:
        [resamples].
    """
    output, reference, correct, total = sums[:, 0], sums[:, 1], sums[:, 2:6], sums[:, 6:10]
    missed = correct == 0
    # Each order without a match halves the precision it is credited with (NIST smoothing).
    credit = np.where(missed, 0.5 ** np.cumsum(missed, axis=1), correct)
    logs = np.log(credit) - np.log(np.maximum(total, 1.0))
    penalty = np.minimum(0.0, 1.0 - reference / np.maximum(output, 1.0))
    score = 100.0 * np.exp(np.mean(logs, axis=1) + penalty)
    possible = correct.any(axis=1) & total.all(axis=1)
    return np.where(possible, score, 0.0)


def chrf_from_sums(sums: Array, beta: float = 2.0) -> Array:
    """Corpus chrF (0-100) with sacreBLEU's default effective order.

    Args:
        sums: [resamples, 3 x orders]: per order the n-grams of output and reference, and matches.
        beta: weight of recall against precision.

    Returns:
        [resamples].
    """
    output, reference, match = sums[:, 0::3], sums[:, 1::3], sums[:, 2::3]
    used = (output > 0) & (reference > 0)
    orders = np.maximum(used.sum(axis=1), 1)
    precision = np.where(used, match / np.maximum(output, 1.0), 0.0).sum(axis=1) / orders
    recall = np.where(used, match / np.maximum(reference, 1.0), 0.0).sum(axis=1) / orders
    weighted = beta**2 * precision + recall
    nothing = weighted == 0
    return np.where(
        nothing, 0.0, 100.0 * (1 + beta**2) * precision * recall / np.where(nothing, 1, weighted)
    )


_VECTORISED: dict[str, Callable[[Array], Array]] = {
    "bleu": bleu_from_sums,
    "chrf": chrf_from_sums,
}
