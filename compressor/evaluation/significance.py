"""Does the pruned model's score differ from the dense model's? Paired bootstrap, exact test.

Koehn 2004 ("Statistical Significance Tests for Machine Translation Evaluation"): draw as many
test rows as there are, with replacement, score both models on the same draw, repeat. Here one
set of draws serves all metrics, and a draw is a vector of counts per row, so that no sentence is
tokenised twice and every score of a chunk of draws is one matrix product away. The draws are
those of sacreBLEU with its default seed, 12345.

With d the observed and d* the resampled differences (pruned minus dense), the interval is the
plain percentile interval of d*. All p-values are two-sided:

- p = (1 + #{ |d* - d| >= |d| }) / (1 + resamples), where d* - d stands for the chance deviation of
  d from the true difference (Hall & Wilson 1991, "Two Guidelines for Bootstrap Hypothesis
  Testing"). `sacrebleu --paired-bs` gives about half of it where the winner is clear.
- for accuracy, McNemar's exact test, which no resampling limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError, UsageError
from compressor.evaluation.classification import ClassificationPair
from compressor.evaluation.translation import TranslationPair, check_lengths
from compressor.results import Comparison
from compressor.tasks import get_task

DEFAULT_RESAMPLES = 1000
DEFAULT_SEED = 12345

# Drawn row numbers held at once (int64): a chunk of resamples takes a few times 32 MB.
_DRAWS_PER_CHUNK = 4_000_000

Array = NDArray[np.float64]


class Pair(Protocol):
    """Two models on the same rows, ready to be scored on any resample of them."""

    @property
    def groups(self) -> NDArray[np.intp]:
        """[rows]: rows with the same number contribute alike."""

    @property
    def points(self) -> dict[str, tuple[float, float]]:
        """metric -> (dense, pruned) on all rows."""

    @property
    def exact_p(self) -> dict[str, float]:
        """metric -> two-sided p-value, of the metrics that have an exact test."""

    def scores(self, counts: Array) -> dict[str, tuple[Array, Array]]:
        """metric -> (dense, pruned), each [resamples], from counts [resamples, groups]."""


def compare(
    task: str,
    dense_outputs: Sequence[str],
    pruned_outputs: Sequence[str],
    references: Sequence[str],
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = DEFAULT_SEED,
    *,
    tokenize: str | None = None,
) -> list[Comparison]:
    """Interval and two-sided p-value of the difference in every metric of a task.

    Args:
        task: `translation` or `classification`.
        dense_outputs: translations or label names of the dense model.
        pruned_outputs: the same of the pruned model.
        references: reference translations or gold label names.
        resamples: number of bootstrap draws.
        seed: of the draws; the same for all metrics.
        tokenize: sacreBLEU's tokenizer for BLEU; translation only.

    Returns:
        One comparison per metric. Models that score alike on every draw (equal outputs above
        all) get difference 0, interval (0, 0) and p-value 1.

    Raises:
        InputError: different numbers of rows, or fewer than two of them.
        UsageError: unknown task or tokenizer, or fewer than one resample.
    """
    check_lengths(dense_outputs, references)
    check_lengths(pruned_outputs, references)
    if len(references) < 2:
        raise InputError(
            "a paired comparison of 1 row is meaningless; give a test file with at least 2 rows"
        )
    if resamples < 1:
        raise UsageError(f"{resamples} resamples cannot be drawn; ask for at least 1")
    pair = _pair(task, dense_outputs, pruned_outputs, references, tokenize)
    exact = pair.exact_p
    return [
        _comparison(metric, pair.points[metric], pruned - dense, exact.get(metric))
        for metric, (dense, pruned) in bootstrap(pair, resamples, seed).items()
    ]


def _pair(
    task: str,
    dense: Sequence[str],
    pruned: Sequence[str],
    references: Sequence[str],
    tokenize: str | None,
) -> Pair:
    return _PAIRS[get_task(task).name](dense, pruned, references, tokenize)


def _classification_pair(
    dense: Sequence[str], pruned: Sequence[str], references: Sequence[str], tokenize: str | None
) -> Pair:
    if tokenize is not None:
        raise UsageError(
            f"tokenizer {tokenize!r} is for BLEU; classification has none, leave it out",
            id="tokenizer-without-bleu",
        )
    return ClassificationPair.of(dense, pruned, references)


_PAIRS: dict[str, Callable[[Sequence[str], Sequence[str], Sequence[str], str | None], Pair]] = {
    "translation": TranslationPair.of,
    "classification": _classification_pair,
}


def bootstrap(pair: Pair, resamples: int, seed: int) -> dict[str, tuple[Array, Array]]:
    """Scores of both models on the same draws: metric -> (dense, pruned), each [resamples]."""
    chunks = [pair.scores(counts) for counts in _draws(pair.groups, resamples, seed)]
    return {
        metric: (
            np.concatenate([chunk[metric][0] for chunk in chunks]),
            np.concatenate([chunk[metric][1] for chunk in chunks]),
        )
        for metric in pair.points
    }


def _draws(groups: NDArray[np.intp], resamples: int, seed: int) -> Iterator[Array]:
    """Chunks [resamples of the chunk, groups] of how often each group was drawn.

    The random stream does not depend on the chunk size.
    """
    rows, width = groups.size, int(groups.max()) + 1
    generator = np.random.default_rng(seed)
    size = max(1, _DRAWS_PER_CHUNK // rows)
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        drawn = groups[generator.integers(rows, size=(count, rows))]
        drawn += np.arange(count)[:, None] * width
        counts = np.bincount(drawn.reshape(-1), minlength=count * width)
        yield counts.reshape(count, width).astype(np.float64)


def _comparison(
    metric: str, point: tuple[float, float], differences: Array, exact_p: float | None
) -> Comparison:
    observed = point[1] - point[0]
    low, high = np.quantile(differences, [0.025, 0.975])
    return Comparison(
        metric=metric,
        dense=point[0],
        pruned=point[1],
        difference=observed,
        interval=(float(low), float(high)),
        p_value=_p_value(observed, differences) if exact_p is None else exact_p,
        resamples=differences.size,
    )


def _p_value(observed: float, differences: Array) -> float:
    # Draws in which the models come out level deviate by exactly `observed`, but for rounding.
    extreme = np.abs(differences - observed) >= abs(observed) * (1 - 1e-9)
    return (1 + int(np.count_nonzero(extreme))) / (1 + differences.size)
