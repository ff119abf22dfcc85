"""Is the pruned model worse than the dense one, by how much, and could the metric show it?

"No significant difference" proves nothing: with few rows, no difference is significant. A model is
shown to be not worse by more than a limit if `lower_bound` of pruned minus dense is within it.
"""

from __future__ import annotations

import math
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
from compressor.results import Comparison
from compressor.tasks import Rows

DEFAULT_RESAMPLES = 1000
DEFAULT_SEED = 12345
FLOOR_DRAWS, FLOOR_ERROR = 200, 0.05
# Bootstrap draws beyond a bound, at least; fewer make it unstable.
DRAWS_BEYOND = 10
ALPHA = 0.025  # beyond each end of a 95 % interval
MOST_ROWS = 10**9  # larger numbers of rows are not reported


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
    """Two-sided, by McNemar's exact test where rows are counted that only one model has right.

    Else p = (1 + #{ |d* - d| >= |d| }) / (1 + resamples), where d* - d, of drawn and observed
    differences, stands for the random deviation of d from the true one (Hall & Wilson 1991, "Two
    Guidelines for Bootstrap Hypothesis Testing"). `sacrebleu --paired-bs` reports about half of it
    if one model is clearly better.
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
        first, second = map(self.metrics[metric].right, self.statistics[metric])
        if first is None or second is None:
            return None
        return int(self.counts[first & ~second].sum()), int(self.counts[second & ~first].sum())

    def bootstrap(self, resamples: int, seed: int) -> dict[str, tuple[Array, Array]]:
        """Scores of both models on the same draws: metric -> (dense, pruned), each [resamples]."""
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
    is positive in 95 % of the draws. Of very many rows a sample is used.
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


@dataclass(frozen=True)
class LowerBound:
    """A lower confidence bound of pruned minus dense, on the metric's scale."""

    value: float
    # Estimated number of rows that raises the bound to the limit at the measured difference; None
    # if the measured drop is not below the limit.
    rows: int | None


def lower_bound(
    metric: Metric,
    dense_outputs: Texts,
    pruned_outputs: Texts,
    references: Texts,
    *,
    limit: float,
    alpha: float,
    resamples: int,
    seed: int,
) -> LowerBound:
    """The lower confidence bound of pruned minus dense in one metric, from outputs.

    `limit` is the allowed drop on its scale, `alpha` the probability that the true difference is
    below the bound: 0.025 for the lower end of a 95 % interval. More draws than `resamples` are
    made if `alpha` needs them.

    Of metrics that count correct rows it is Tango's (`score_bound`), which keeps its level also
    where few outputs change; the bootstrap's interval is [0, 0] where none does. Of others it is
    the quantile of the paired bootstrap, but at least as far from the difference as the rows can
    miss (`_reach`).
    """
    pair, rows = Pair.of([metric], dense_outputs, pruned_outputs, references), len(references)
    changed = pair.discordant(metric.name)
    if changed is not None:
        loss = score_bound(*changed, rows, alpha)
        return LowerBound(-100 * loss, rows_for_score_bound(*changed, rows, limit / 100, alpha))
    dense, pruned = pair.points(metric.name)
    draws = pair.bootstrap(max(resamples, math.ceil(DRAWS_BEYOND / alpha)), seed)[metric.name]
    difference = pruned - dense
    width = difference - float(np.quantile(draws[1] - draws[0], alpha))
    value = difference - _reach(width, dense, rows, alpha)
    return LowerBound(value, _bootstrap_rows(rows, width, dense, limit + difference, alpha))


def confidence_bounds(comparison: Comparison, rows: int) -> tuple[float, float] | None:
    """Both ends of the 95 % confidence interval of pruned minus dense, as `lower_bound` has them.

    None without rows, or if a value is not finite.
    """
    if rows < 1 or not _is_finite(comparison):
        return None
    if comparison.discordant is not None:
        lost, won = comparison.discordant
        low, high = -score_bound(lost, won, rows, ALPHA), score_bound(won, lost, rows, ALPHA)
        return 100 * low, 100 * high
    low, high = comparison.interval
    difference = comparison.difference
    below = _reach(difference - low, comparison.dense, rows, ALPHA)
    return difference - below, difference + _reach(
        high - difference, comparison.pruned, rows, ALPHA
    )


def rows_to_settle(comparison: Comparison, rows: int, limit: float) -> int | None:
    """Estimated number of rows that prove the measured drop to be within the limit, or beyond it.

    None if that drop is so near to the limit that no number of rows suffices.
    """
    if rows < 1 or not _is_finite(comparison):
        return None
    room, changed = limit + comparison.difference, comparison.discordant
    low, high = comparison.interval
    if room > 0:
        if changed is not None:
            return rows_for_score_bound(*changed, rows, limit / 100, ALPHA)
        return _bootstrap_rows(rows, comparison.difference - low, comparison.dense, room, ALPHA)
    if changed is not None:
        lost, won = changed
        high = 100 * score_bound(won, lost, rows, ALPHA)
    return scaled_rows(rows, high - comparison.difference, -room)


def scaled_rows(rows: int, width: float, room: float) -> int | None:
    """The number of rows at which a width, which falls with their square root, equals `room`."""
    if not room > 0:
        return None
    needed = rows * (max(width, 0.0) / room) * (max(width, 0.0) / room)
    return math.ceil(needed) if needed < MOST_ROWS else None


def _is_finite(comparison: Comparison) -> bool:
    scores = (comparison.dense, comparison.pruned, comparison.difference, *comparison.interval)
    return all(map(math.isfinite, scores))


def score_bound(lost: int, won: int, rows: int, alpha: float) -> float:
    """Upper confidence bound of the share of rows lost, net of those won (Tango 1998).

    "Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design", Statistics in Medicine 17: the largest loss (0-1) that the score test
    does not reject. `lost` rows are correct for the first model only, `won` for the second only.
    """
    quantile = _normal_quantile(alpha)
    low, high = (lost - won) / rows, 1.0
    for _ in range(60):  # halves the interval to less than the precision of a float
        loss = (low + high) / 2
        excess = rows * loss - (lost - won)
        if excess <= quantile * math.sqrt(rows * _score_variance(lost, won, rows, loss)):
            low = loss
        else:
            high = loss
    return low


def rows_for_score_bound(lost: int, won: int, rows: int, limit: float, alpha: float) -> int | None:
    """The number of rows with the same shares of lost and won rows that prove a loss below `limit`.

    The score test's statistic grows with their square root.
    """
    room = limit - (lost - won) / rows
    if room <= 0:
        return None
    if limit >= 1:
        return 1
    variance = _score_variance(lost, won, rows, limit)
    needed = _normal_quantile(alpha) ** 2 * variance / room / room
    return math.ceil(needed) if needed < MOST_ROWS else None


def _score_variance(lost: int, won: int, rows: int, loss: float) -> float:
    """Variance of a row's loss (-1, 0 or 1) at the likeliest shares with this mean (Tango)."""
    a = 2 * rows
    b = (2 * rows - lost + won) * loss - lost - won
    c = -won * loss * (1 - loss)
    share_won = (math.sqrt(b * b - 4 * a * c) - b) / (2 * a)
    return 2 * share_won + loss * (1 - loss)


def _reach(width: float, score: float, rows: int, alpha: float) -> float:
    """Distance of a bound from the difference: that of the draws, but at least what rows can miss.

    A failure that no row shows can still affect a share of 1 - alpha^(1/n) of all rows, each of
    which then scores 0 instead of `score`.
    """
    return max(width, score * (1 - alpha ** (1 / rows)))


def _bootstrap_rows(rows: int, width: float, dense: float, room: float, alpha: float) -> int | None:
    """The number of rows that raises a bound to the limit, which is `room` below the difference."""
    needed = scaled_rows(rows, width, room)
    if needed is None:
        return None
    share = room / dense if dense > 0 else 1.0
    if share >= 1:
        return max(needed, 1)
    unseen = math.log(alpha) / math.log1p(-share) if share > 0 else math.inf
    return max(needed, math.ceil(unseen)) if unseen < MOST_ROWS else None


def _normal_quantile(alpha: float) -> float:
    from scipy.stats import norm

    return float(norm.isf(alpha))
