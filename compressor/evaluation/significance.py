"""Does the pruned model's score differ from the dense model's? Paired bootstrap, exact test.

Koehn 2004 ("Statistical Significance Tests for Machine Translation Evaluation"): draw as many
test rows as there are, with replacement, score both models on the same draw, repeat. All metrics
share one set of draws. A draw is a vector of counts per row, so no sentence is tokenized twice,
and all scores of a chunk of draws follow from one matrix product. With the default seed, 12345, the
draws are sacreBLEU's.

With d the observed and d* the resampled differences (pruned minus dense), the interval is the
percentile interval of d*. All p-values are two-sided:

- p = (1 + #{ |d* - d| >= |d| }) / (1 + resamples), where d* - d stands for the chance deviation of
  d from the true difference (Hall & Wilson 1991, "Two Guidelines for Bootstrap Hypothesis
  Testing"). `sacrebleu --paired-bs` reports about half of it, a one-sided p-value, where one model
  is clearly better.
- for accuracy, McNemar's exact test, whose p-value can be smaller than 1 / (1 + resamples).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError, UsageError
from compressor.evaluation.metrics import Array, Pair, metrics_of
from compressor.evaluation.translation import check_lengths
from compressor.results import Comparison

DEFAULT_RESAMPLES = 1000
DEFAULT_SEED = 12345

# Row numbers (int64) drawn at once: bounds the memory of a chunk to a few times 32 MB.
DRAWS_PER_CHUNK = 4_000_000


def compare(
    task: str,
    dense_outputs: Sequence[str],
    pruned_outputs: Sequence[str],
    references: Sequence[str],
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = DEFAULT_SEED,
) -> list[Comparison]:
    """Difference of two models in every metric of a task, with its interval and p-value.

    Args:
        task: `translation` or `classification`.
        dense_outputs: translations or label names of the dense model.
        pruned_outputs: the same of the pruned model.
        references: reference translations or the right label names.
        resamples: number of bootstrap draws.
        seed: of the draws; the same for all metrics.

    Returns:
        One comparison per metric. Models that score alike on every draw, such as models with equal
        outputs, get difference 0, interval (0, 0) and p-value 1.

    Raises:
        InputError: different numbers of rows, or fewer than two of them.
        UsageError: an unknown task, or fewer than one resample.
    """
    check_lengths(dense_outputs, references)
    check_lengths(pruned_outputs, references)
    if len(references) < 2:
        raise InputError(
            "two models cannot be compared on 1 row; give a test file with at least 2 rows",
            id="too-few-rows",
        )
    if resamples < 1:
        raise UsageError(
            f"{resamples} resamples cannot be drawn; ask for at least 1", id="too-few-resamples"
        )
    pair = metrics_of(task).pair(dense_outputs, pruned_outputs, references)
    exact, discordant = pair.exact_p, pair.discordant
    return [
        _comparison(
            metric, pair.points[metric], pruned - dense, exact.get(metric), discordant.get(metric)
        )
        for metric, (dense, pruned) in bootstrap(pair, resamples, seed).items()
    ]


def bootstrap(
    pair: Pair, resamples: int, seed: int, chunk: int = DRAWS_PER_CHUNK
) -> dict[str, tuple[Array, Array]]:
    """Scores of both models on the same draws: metric -> (dense, pruned), each [resamples]."""
    counts = resampled_counts(pair.groups, resamples, seed, chunk)
    chunks = [pair.scores(part) for part in counts]
    return {
        metric: (
            np.concatenate([chunk[metric][0] for chunk in chunks]),
            np.concatenate([chunk[metric][1] for chunk in chunks]),
        )
        for metric in pair.points
    }


def resampled_counts(
    groups: NDArray[np.intp], resamples: int, seed: int, chunk: int = DRAWS_PER_CHUNK
) -> Iterator[Array]:
    """How often each group was drawn, in chunks [resamples of the chunk, groups].

    Args:
        groups: [rows], the group of each row.
        chunk: row numbers drawn at once; the draws do not depend on it.
    """
    rows, width = groups.size, int(groups.max()) + 1
    generator = np.random.default_rng(seed)
    size = max(1, chunk // rows)
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        drawn = groups[generator.integers(rows, size=(count, rows))]  # [resamples, rows]
        drawn += np.arange(count)[:, None] * width  # each resample has its own range of numbers
        counts = np.bincount(drawn.reshape(-1), minlength=count * width)
        yield counts.reshape(count, width).astype(np.float64)


def _comparison(
    metric: str,
    point: tuple[float, float],
    differences: Array,
    exact_p: float | None,
    discordant: tuple[int, int] | None,
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
        discordant=discordant,
    )


def _p_value(observed: float, differences: Array) -> float:
    # Draws on which both models score alike deviate by exactly `observed`: the tolerance keeps
    # rounding from dropping them.
    extreme = np.abs(differences - observed) >= abs(observed) * (1 - 1e-9)
    return (1 + int(np.count_nonzero(extreme))) / (1 + differences.size)
