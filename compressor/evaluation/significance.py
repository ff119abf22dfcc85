"""Is the pruned model worse than the dense one, and could the metric show it?

"No significant difference" proves nothing: with few rows, no difference is significant, and at the
floor of a metric neither.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.evaluation.metric import (
    Array,
    Metric,
    Texts,
    group_rows,
    main_metric,
    metrics_for,
    resampled_counts,
)
from compressor.steps.results import Comparison
from compressor.tasks import Rows

DEFAULT_RESAMPLES = 1000
DEFAULT_SEED = 12345
FLOOR_DRAWS, FLOOR_ERROR = 200, 0.05


def compare_rows(
    rows: Rows,
    dense_outputs: Texts,
    pruned_outputs: Texts,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = DEFAULT_SEED,
) -> list[Comparison]:
    """Difference of two models in every metric of some rows, with its interval and p-value.

    The interval is the percentile interval of the paired bootstrap (Koehn 2004, "Statistical
    Significance Tests for Machine Translation Evaluation"): as many test rows (or queries of ranked
    rows) as there are, are drawn with replacement, the same for both models and all metrics. With
    the default seed they are sacreBLEU's.

    Args:
        rows: with references.
        dense_outputs: one per row.
        pruned_outputs: one per row.
        resamples: number of draws.
        seed: of the draws.

    Returns:
        A comparison for each metric, the main one first.
    """
    dense, pruned, references = map(rows.judged, (dense_outputs, pruned_outputs, rows.targets))
    metrics = metrics_for(rows)
    pair = Pair.of(metrics, dense, pruned, references)
    draws = pair.bootstrap(resamples, seed)
    comparisons = []
    for metric in metrics:
        name = metric.name
        point, discordant = pair.points(name), pair.discordant(name)
        difference = point[1] - point[0]
        drawn = draws[name][1] - draws[name][0]
        low, high = np.quantile(drawn, [0.025, 0.975])
        floor, at_floor = find_floor(metric, dense, references)
        compared = Comparison(
            metric=name,
            dense=point[0],
            pruned=point[1],
            difference=difference,
            interval=(float(low), float(high)),
            p_value=_p_value(difference, drawn, discordant),
            resamples=drawn.size,
            discordant=discordant,
            floor=floor,
            at_floor=at_floor,
        )
        comparisons.append(compared)
    return comparisons


def _p_value(difference: float, drawn: Array, discordant: tuple[int, int] | None) -> float:
    """The two-sided p-value of a difference.

    McNemar's exact test where rows are counted that only one model has right. Otherwise
    p = (1 + #{ |d* - d| >= |d| }) / (1 + resamples), where d* - d, of drawn and observed
    differences, stands for the random deviation of d from the true one (Hall & Wilson 1991, "Two
    Guidelines for Bootstrap Hypothesis Testing"). `sacrebleu --paired-bs` reports about half of it
    if one model is clearly better.

    Args:
        difference: observed.
        drawn: differences of the resamples, [resamples].
        discordant: rows that only (dense, pruned) has right; None if the metric counts no rows.
    """
    from scipy.stats import binomtest

    if discordant is not None:
        changed = sum(discordant)
        return float(binomtest(discordant[0], changed).pvalue) if changed else 1.0
    # Draws with equal scores of both models deviate by exactly `difference`; the tolerance keeps
    # them despite rounding.
    extreme = np.abs(drawn - difference) >= abs(difference) * (1 - 1e-9)
    return (1 + int(np.count_nonzero(extreme))) / (1 + drawn.size)


@dataclass(frozen=True)
class Pair:
    """Statistics of two models' outputs, to score on any resample; equal rows form a group."""

    metrics: dict[str, Metric]
    groups: NDArray[np.intp]  # [rows]
    statistics: dict[str, tuple[Array, Array]]  # metric -> (dense, pruned) [groups, statistics]

    @classmethod
    def of(cls, metrics: Sequence[Metric], dense: Texts, pruned: Texts, references: Texts) -> Pair:
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
        """Numbers of rows only (dense, pruned) has right; None if the metric counts no rows."""
        first, second = map(self.metrics[metric].right, self.statistics[metric])
        if first is None or second is None:
            return None
        return int(self.counts[first & ~second].sum()), int(self.counts[second & ~first].sum())

    def bootstrap(self, resamples: int, seed: int) -> dict[str, tuple[Array, Array]]:
        """Score both models on the same draws of rows.

        Returns:
            Metric -> scores of (dense, pruned), each [resamples].
        """
        drawn: dict[str, list[tuple[Array, Array]]] = {name: [] for name in self.statistics}
        for counts in resampled_counts(self.groups, resamples, seed):
            for name, (dense, pruned) in self.statistics.items():
                scores = self.metrics[name].scores
                drawn[name].append((scores(dense, counts), scores(pruned, counts)))
        return {
            name: (np.concatenate([x for x, _ in parts]), np.concatenate([x for _, x in parts]))
            for name, parts in drawn.items()
        }


def find_floor(metric: Metric, answers: Texts, references: Texts) -> tuple[float, bool]:
    """The score of uninformed outputs, and whether a model's is not significantly above it.

    At that floor "no significant difference" holds for every smaller model, and proves nothing.
    Uninformed outputs are the model's own in random order, so the floor of accuracy is not
    1 / labels, but the chance level of the model's label frequencies: a model that always predicts
    the most frequent label is at the floor, and so is every model on rows that all have the same
    label. For BLEU a score without a matching n-gram of some length, which is smoothing's credit,
    counts as 0. A score is above the floor if the difference of the two, on the same draws of rows,
    is positive in 95 % of the draws. If there are very many rows, a sample is used.

    Args:
        metric: with its tokenizer.
        answers: the model's outputs, one per row.
        references: the correct outputs.

    Returns:
        The floor on the metric's scale, and whether the model's score is at it.
    """
    return _find(type(metric), metric.tokenizer, tuple(answers), tuple(references))


def require_above_chance(rows: Rows, answers: Texts, asked: str) -> None:
    """Raise InputError if a dense model's main metric is at its floor; `asked` needs it."""
    metric = metrics_for(rows)[0]
    floor, is_reached = find_floor(metric, rows.judged(answers), rows.references)
    if is_reached:
        count, what = rows.counted
        raise InputError(
            f"{asked}: on {count:,} {what} the dense model's {metric.label} of "
            f"{main_metric(rows, answers)[0]:.{metric.digits}f} is at the metric's floor "
            f"({floor:.{metric.digits}f} for outputs in random order), so it could not show "
            f"a loss; {metric.advice}",
            id="metric-at-floor",
        )


@lru_cache(maxsize=16)
def _find(
    kind: type[Metric], tokenizer: str, answers: tuple[str, ...], references: tuple[str, ...]
) -> tuple[float, bool]:
    metric = kind()
    metric.tokenizer = tokenizer
    if len(answers) > metric.floor_rows:
        drawn = random.Random(DEFAULT_SEED).sample(range(len(answers)), metric.floor_rows)
        answers, references = (
            tuple(texts[row] for row in drawn) for texts in (answers, references)
        )
    (statistics,) = metric.statistics([answers], references)
    once = np.ones(len(answers))
    draws = np.concatenate(
        list(resampled_counts(np.arange(len(answers)), FLOOR_DRAWS, DEFAULT_SEED))
    )
    gains = metric.unsmoothed(statistics, draws)
    if metric.floor is None:
        uninformed = metric.uninformed(answers, references, np.random.default_rng(DEFAULT_SEED))
        floor = metric.score(uninformed, once)
        gains = gains - metric.unsmoothed(uninformed, draws)
    else:
        floor = metric.floor
        gains = gains - floor
    is_above = float(np.quantile(gains, FLOOR_ERROR)) > 1e-9 * metric.scale
    return floor, not is_above
