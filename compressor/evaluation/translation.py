"""BLEU and chrF, computed by sacreBLEU, and the same two formulas for many resamples at once.

sacreBLEU turns each sentence into a few counts; the corpus score is a function of their sums.
Counts and scores on all rows come from sacreBLEU itself. For a bootstrap the counts are extracted
once, and the two functions are evaluated here on a matrix of sums; the tests compare them with
sacreBLEU's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.results import Quality

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

Array = NDArray[np.float64]

_ROWS_PER_CHUNK = 2000  # of references whose n-grams sacreBLEU holds at once


def score_translation(hypotheses: Sequence[str], references: Sequence[str]) -> Quality:
    """Corpus BLEU and chrF (both 0-100) against one reference per sentence.

    Args:
        hypotheses: detokenized translations, in the order of `references`.
        references: detokenized reference translations.

    Raises:
        InputError: no sentences, or different numbers of hypotheses and references.
    """
    check_lengths(hypotheses, references)
    statistics = _statistics((hypotheses,), references)
    metrics = translation_metrics(references[:1])
    return Quality(
        metrics={name: _score(metrics[name], arrays[0]) for name, arrays in statistics.items()},
        signatures={name: str(metric.get_signature()) for name, metric in metrics.items()},
        rows=len(hypotheses),
    )


def check_lengths(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Check that there is one hypothesis for each reference.

    Raises:
        InputError: nothing to score, or the two sides differ in length.
    """
    if len(hypotheses) != len(references):
        raise InputError(
            f"there are {len(hypotheses)} outputs for {len(references)} references; "
            "give exactly one output per reference, in the same order",
            id="outputs-do-not-match-references",
        )
    if not references:
        raise InputError(
            "there are no rows to score; give a test file with at least one row", id="no-rows"
        )


def translation_metrics(references: Sequence[str]) -> dict[str, Metric]:
    """sacreBLEU's metric objects with these references, by the names used in reports."""
    from sacrebleu.metrics import BLEU, CHRF

    columns = [list(references)]
    return {"bleu": BLEU(references=columns), "chrf": CHRF(references=columns)}


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
        cls, dense: Sequence[str], pruned: Sequence[str], references: Sequence[str]
    ) -> TranslationPair:
        """Extract the statistics of both systems once."""
        statistics = _statistics((dense, pruned), references)
        metrics = translation_metrics(references[:1])
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
        """Empty: neither BLEU nor chrF has an exact test."""
        return {}

    @property
    def discordant(self) -> dict[str, tuple[int, int]]:
        """Empty: neither BLEU nor chrF counts rows that are right."""
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
            for name, score in _FORMULAS.items()
        }


def _statistics(
    systems: Sequence[Sequence[str]], references: Sequence[str]
) -> dict[str, list[Array]]:
    """metric -> sacreBLEU's counts [rows, statistics] of each system.

    In chunks, because sacreBLEU keeps the n-grams of all references it is given. The metric objects
    are made with the references, which are then split into n-grams once for all systems.
    """
    counts: dict[str, list[list[list[int]]]] = {}  # metric, system, row, count
    for start in range(0, len(references), _ROWS_PER_CHUNK):
        rows = slice(start, start + _ROWS_PER_CHUNK)
        for name, metric in translation_metrics(references[rows]).items():
            tables = counts.setdefault(name, [[] for _ in systems])
            for table, outputs in zip(tables, systems, strict=True):
                # Private, but sacreBLEU's own significance tests are built on it; our tests compare
                # every score made from it with sacreBLEU's public functions.
                table.extend(metric._extract_corpus_statistics(outputs[rows], None))
    return {
        name: [np.array(table, dtype=np.float64) for table in tables]
        for name, tables in counts.items()
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
    # NIST smoothing: an order without a match counts 1/2 match, the next such order 1/4, and so on.
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


_FORMULAS: dict[str, Callable[[Array], Array]] = {
    "bleu": bleu_from_sums,
    "chrf": chrf_from_sums,
}
