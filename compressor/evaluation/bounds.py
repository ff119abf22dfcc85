"""Confidence bounds of the difference of two models, and how many rows a narrower one would need.

A model is shown to be not worse by more than a limit if `lower_bound` of pruned minus dense is
within it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from compressor.evaluation.metric import (
    Metric,
    Texts,
)
from compressor.evaluation.significance import Pair
from compressor.steps.results import Comparison

# Bootstrap draws beyond a bound, at least; fewer make it unstable.
DRAWS_BEYOND = 10
ALPHA = 0.025  # beyond each end of a 95 % interval
MOST_ROWS = 10**9  # larger numbers of rows are not reported


@dataclass(frozen=True)
class LowerBound:
    """A lower confidence bound of pruned minus dense, on the metric's scale."""

    value: float
    # Estimated number of rows that raises the bound to the limit at the measured difference; None
    # if the measured drop is not below the limit, or for `MOST_ROWS` and more.
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

    For metrics that count correct rows it is Tango's (`score_bound`), which keeps its level also
    where few outputs change; the bootstrap's interval is [0, 0] where none does. For others it is
    the quantile of the paired bootstrap, but at least as far from the difference as the rows can
    miss (`_reach`).

    Args:
        metric: with its tokenizer.
        dense_outputs: one per row.
        pruned_outputs: one per row.
        references: the correct outputs.
        limit: the allowed drop, on the metric's scale.
        alpha: probability that the true difference is below the bound: 0.025 for the lower end of
            a 95 % interval.
        resamples: draws of rows; more are made if `alpha` needs them.
        seed: of the draws.
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

    Args:
        comparison: of both models.
        rows: that it was measured on.

    Returns:
        (low, high) on the metric's scale; None without rows, or if a value is not finite.
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
    """Estimate the number of rows that prove a drop to be within the limit, or beyond it.

    The drop is taken to stay as measured; more rows only narrow its interval.

    Args:
        comparison: of both models.
        rows: that it was measured on.
        limit: the allowed drop, on the metric's scale.

    Returns:
        None if no number of rows below `MOST_ROWS` suffices, without rows, and for values that are
        not finite.
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
    """The number of rows at which a width equals `room`; widths fall with the root of the rows.

    Args:
        rows: at which `width` was measured.
        width: of a confidence interval's side.
        room: the wanted width.

    Returns:
        None if it is more than `MOST_ROWS`, or if there is no room.
    """
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
    paired-sample design", Statistics in Medicine 17: the largest loss that the score test does not
    reject.

    Args:
        lost: number of rows that only the first model has right.
        won: number of rows that only the second model has right.
        rows: number of all rows.
        alpha: one-sided error probability.

    Returns:
        A loss from -1 to 1.
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
    """The number of rows, with the same shares of lost and won ones, that prove a small loss.

    The score test's statistic grows with the root of the rows.

    Args:
        lost: number of rows that only the first model has right.
        won: number of rows that only the second model has right.
        rows: number of all rows.
        limit: the loss to prove smaller, as a share of rows.
        alpha: one-sided error probability.

    Returns:
        None if the measured loss is not below the limit, or for `MOST_ROWS` and more.
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
    """The number of rows that raises a bound to the limit.

    Args:
        rows: at which `width` was measured.
        width: from the difference down to the bound.
        dense: the dense model's score.
        room: from the difference down to the limit.
        alpha: one-sided error probability.
    """
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
