"""Does the pruned model's score differ from the dense model's? Paired bootstrap, exact test.

Koehn 2004 ("Statistical Significance Tests for Machine Translation Evaluation"): draw as many
test rows as there are, with replacement, score both models on the same draw, repeat. All metrics
share one set of draws. A draw is a vector of counts per row, so no sentence is tokenized twice,
and all scores of a chunk of draws follow from one matrix product. With the default seed, 12345, the
draws are sacreBLEU's.

With d the observed and d* the resampled differences (pruned minus dense), the interval is the
percentile interval of d*. All p-values are two-sided:

- p = (1 + #{ |d* - d| >= |d| }) / (1 + resamples), where d* - d stands for the random deviation of
  d from the true difference (Hall & Wilson 1991, "Two Guidelines for Bootstrap Hypothesis
  Testing"). If one model is clearly better, `sacrebleu --paired-bs` reports about half of it, a
  one-sided p-value.
- for metrics that count correct rows, as accuracy does, McNemar's exact test, whose p-value can be
  smaller than 1 / (1 + resamples).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.evaluation.draws import DRAWS_PER_CHUNK, resampled_counts
from compressor.evaluation.floor import Floor, find_floor
from compressor.evaluation.metric import Array, Metric, group_rows
from compressor.evaluation.metrics import metrics_for
from compressor.results import Comparison
from compressor.tasks import Rows

DEFAULT_RESAMPLES = 1000
DEFAULT_SEED = 12345


def compare_rows(
    rows: Rows,
    dense_outputs: Sequence[str],
    pruned_outputs: Sequence[str],
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = DEFAULT_SEED,
) -> list[Comparison]:
    """Difference of two models in every metric of some rows, with its interval and p-value.

    Args:
        dense_outputs: outputs of the dense model for the rows.
        pruned_outputs: the same of the pruned model.
        resamples: number of bootstrap draws of rows, or of queries for ranked rows.
        seed: of the draws; the same for all metrics.

    Returns:
        One comparison per metric. Models with equal scores on every draw, such as models with equal
        outputs, get difference 0, interval (0, 0) and p-value 1.

    Raises:
        InputError: a single row, or query.
    """
    dense, pruned, references = map(rows.judged, (dense_outputs, pruned_outputs, rows.targets))
    if len(references) < 2:
        raise InputError(
            "two models cannot be compared on 1 row; give a test file with at least 2 rows",
            id="too-few-rows",
        )
    metrics = metrics_for(rows)
    pair = Pair.of(metrics, dense, pruned, references)
    draws = pair.bootstrap(resamples, seed)
    return [
        _comparison(
            metric.name,
            pair.points(metric.name),
            draws[metric.name][1] - draws[metric.name][0],
            pair.discordant(metric.name),
            find_floor(metric, dense, references),
        )
        for metric in metrics
    ]


@dataclass(frozen=True)
class Pair:
    """Statistics of two models' outputs for the same rows, to score on any resample of the rows.

    Args:
        metrics: by name.
        groups: [rows], the group of each row; rows of a group are equal.
        statistics: metric -> those of (dense, pruned), [groups, statistics].
    """

    metrics: dict[str, Metric]
    groups: NDArray[np.intp]
    statistics: dict[str, tuple[Array, Array]]

    @classmethod
    def of(
        cls,
        metrics: Sequence[Metric],
        dense: Sequence[str],
        pruned: Sequence[str],
        references: Sequence[str],
    ) -> Pair:
        """Compute the statistics of some metrics, once for each distinct row."""
        (gold, *systems), groups = group_rows(references, dense, pruned)
        statistics = {}
        for metric in metrics:
            first, second = metric.statistics(systems, gold)
            statistics[metric.name] = first, second
        return cls({metric.name: metric for metric in metrics}, groups, statistics)

    @property
    def counts(self) -> Array:
        """[groups]: number of rows of each."""
        return np.bincount(self.groups).astype(np.float64)

    def points(self, metric: str) -> tuple[float, float]:
        """Scores of (dense, pruned) on all rows."""
        dense, pruned = self.statistics[metric]
        score = self.metrics[metric].score
        return score(dense, self.counts), score(pruned, self.counts)

    def discordant(self, metric: str) -> tuple[int, int] | None:
        """Numbers of rows that are correct for (dense, pruned) only; None if it counts no rows."""
        return self.metrics[metric].discordant(*self.statistics[metric], self.counts)

    def bootstrap(
        self, resamples: int, seed: int, chunk: int = DRAWS_PER_CHUNK
    ) -> dict[str, tuple[Array, Array]]:
        """Scores of both models on the same draws: metric -> (dense, pruned), each [resamples]."""
        drawn: dict[str, list[tuple[Array, Array]]] = {name: [] for name in self.statistics}
        for counts in resampled_counts(self.groups, resamples, seed, chunk):
            for name, (dense, pruned) in self.statistics.items():
                scores = self.metrics[name].scores
                drawn[name].append((scores(dense, counts), scores(pruned, counts)))
        return {
            name: (np.concatenate([x for x, _ in parts]), np.concatenate([x for _, x in parts]))
            for name, parts in drawn.items()
        }


def _comparison(
    metric: str,
    point: tuple[float, float],
    differences: Array,
    discordant: tuple[int, int] | None,
    floor: Floor,
) -> Comparison:
    observed = point[1] - point[0]
    low, high = np.quantile(differences, [0.025, 0.975])
    return Comparison(
        metric=metric,
        dense=point[0],
        pruned=point[1],
        difference=observed,
        interval=(float(low), float(high)),
        p_value=mcnemar(*discordant) if discordant else _p_value(observed, differences),
        resamples=differences.size,
        discordant=discordant,
        floor=floor.score,
        at_floor=floor.reached,
    )


def _p_value(observed: float, differences: Array) -> float:
    # Draws with equal scores of both models deviate by exactly `observed`; the tolerance keeps them
    # despite rounding.
    extreme = np.abs(differences - observed) >= abs(observed) * (1 - 1e-9)
    return (1 + int(np.count_nonzero(extreme))) / (1 + differences.size)


def mcnemar(first: int, second: int) -> float:
    """Two-sided p-value of McNemar's exact test.

    If neither model is better, each row that only one of them has right is equally likely to be
    either's.

    Args:
        first: rows that are correct for the first model only.
        second: rows that are correct for the second model only.
    """
    from scipy.stats import binomtest

    return float(binomtest(first, first + second).pvalue) if first + second else 1.0
