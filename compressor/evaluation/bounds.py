"""Is the pruned model shown to lose no more than a limit? One-sided confidence bounds.

"No significant difference" shows nothing: with few rows, no difference is significant. To show that
a model is not worse than the dense one by more than a limit is a test of non-inferiority: the lower
confidence bound of pruned minus dense must lie within the limit, so it is the pruned model that has
to bring the proof.

- Metrics that count rows that are right, as accuracy does: the score bound of Tango 1998
  ("Equivalence test and confidence interval for the difference in proportions for the paired-sample
  design", Statistics in Medicine 17). It holds its level where few answers change, as they do after
  a small cut; the bootstrap does not: of rows without any change it makes the interval [0, 0].
- Other metrics: the quantile of the paired bootstrap (`compressor.evaluation.significance`), but no
  nearer to the difference than what n rows can miss: a failure that none of them shows can still
  strike a share of 1 - alpha^(1/n) of all rows, each of which then scores nothing.

A search asks for the lower bound alone, of answers (`lower_bound`). A finished report holds no
answers, and its rules need both ends: `confidence_bounds`, from a `Comparison`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compressor.evaluation.metric import Metric
from compressor.evaluation.significance import Pair
from compressor.results import Comparison

# So many draws of the bootstrap lie beyond a bound; with fewer it would be left to chance.
DRAWS_BEYOND = 10
ALPHA = 0.025  # beyond each end of a 95 % interval
MOST_ROWS = 10**9  # more than this is advice for nobody


@dataclass(frozen=True)
class LowerBound:
    """How much worse a model may be, as far as some rows tell.

    Args:
        value: lower confidence bound of pruned minus dense, on the metric's scale.
        rows: about how many rows would bring the bound up to the limit if the difference stayed as
            measured; None where no number would, because the measured drop is not below the limit.
    """

    value: float
    rows: int | None


def lower_bound(
    metric: Metric,
    dense_outputs: Sequence[str],
    pruned_outputs: Sequence[str],
    references: Sequence[str],
    *,
    limit: float,
    alpha: float,
    resamples: int,
    seed: int,
) -> LowerBound:
    """The lower confidence bound of pruned minus dense in one metric.

    Args:
        limit: the drop that is allowed, on the metric's scale.
        alpha: how often the true difference may lie below the bound; 0.025 for the lower end of a
            95 % interval.
        resamples: of the bootstrap; more are drawn where `alpha` needs them.
        seed: of the draws.
    """
    pair = Pair.of([metric], dense_outputs, pruned_outputs, references)
    changed = pair.discordant(metric.name)
    if changed is not None:
        lost, won = changed
        loss = score_bound(lost, won, len(references), alpha)
        rows = score_rows(lost, won, len(references), limit / 100, alpha)
        return LowerBound(-100 * loss, rows)
    return _bootstrap_bound(pair, metric.name, limit, alpha, resamples, seed)


def confidence_bounds(comparison: Comparison, rows: int) -> tuple[float, float] | None:
    """Both ends of the 95 % confidence interval of pruned minus dense.

    The upper end is the lower one with the models' roles exchanged.

    Args:
        comparison: with its counts of rows that are right, if the metric has them; without them
            the interval of the bootstrap serves.
        rows: that it was measured on.

    Returns:
        None where the numbers tell nothing: no rows, or something that is not a number.
    """
    if rows < 1 or not _is_finite(comparison):
        return None
    if comparison.discordant is not None:
        lost, won = comparison.discordant
        low, high = -score_bound(lost, won, rows, ALPHA), score_bound(won, lost, rows, ALPHA)
        return 100 * low, 100 * high
    lower, upper = _widths(comparison)
    low = comparison.difference - _reach(lower, comparison.dense, rows, ALPHA)
    return low, comparison.difference + _reach(upper, comparison.pruned, rows, ALPHA)


def rows_to_settle(comparison: Comparison, rows: int, limit: float) -> int | None:
    """About how many rows prove a drop to be within the limit, or beyond it.

    The drop is taken to stay as measured; more rows only narrow its interval.

    Args:
        limit: the drop that is allowed, on the metric's scale.

    Returns:
        None where the measured drop is the limit, or next to it, which no number of rows tells.
    """
    if rows < 1 or not _is_finite(comparison):
        return None
    room = limit + comparison.difference
    if room > 0 and comparison.discordant is not None:
        return score_rows(*comparison.discordant, rows, limit / 100, ALPHA)
    lower, upper = _widths(comparison)
    if room > 0:
        return _bootstrap_rows(rows, lower, comparison.dense, room, ALPHA)
    if comparison.discordant is not None:
        bounds = confidence_bounds(comparison, rows)
        upper = bounds[1] - comparison.difference if bounds else upper
    return scaled_rows(rows, upper, -room)


def scaled_rows(rows: int, width: float, room: float) -> int | None:
    """How many rows make a width, which falls with their square root, as small as `room`."""
    if not room > 0:
        return None
    needed = rows * (max(width, 0.0) / room) * (max(width, 0.0) / room)
    return math.ceil(needed) if needed < MOST_ROWS else None


def _is_finite(comparison: Comparison) -> bool:
    scores = (comparison.dense, comparison.pruned, comparison.difference, *comparison.interval)
    return all(map(math.isfinite, scores))


def _widths(comparison: Comparison) -> tuple[float, float]:
    """How far the bootstrap's interval reaches below and above the difference."""
    low, high = comparison.interval
    return comparison.difference - low, high - comparison.difference


def score_bound(lost: int, won: int, rows: int, alpha: float) -> float:
    """Tango's upper confidence bound of the share of rows lost, net of those won.

    Args:
        lost: rows that only the first model has right.
        won: rows that only the second model has right.

    Returns:
        The largest loss (0-1) that the score test does not reject.
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


def score_rows(lost: int, won: int, rows: int, limit: float, alpha: float) -> int | None:
    """How many rows with the same shares of lost and won rows prove a loss of less than `limit`.

    Where the score test's statistic, which grows with the square root of the rows, reaches the
    normal quantile.
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


def _bootstrap_bound(
    pair: Pair, metric: str, limit: float, alpha: float, resamples: int, seed: int
) -> LowerBound:
    rows = pair.groups.size
    dense, pruned = pair.points(metric)
    draws = pair.bootstrap(max(resamples, math.ceil(DRAWS_BEYOND / alpha)), seed)[metric]
    difference = pruned - dense
    width = difference - float(np.quantile(draws[1] - draws[0], alpha))
    value = difference - _reach(width, dense, rows, alpha)
    return LowerBound(value, _bootstrap_rows(rows, width, dense, limit + difference, alpha))


def _reach(width: float, score: float, rows: int, alpha: float) -> float:
    """How far a bound lies from the difference: what the draws show, but no less than rows miss.

    Args:
        score: of the model that rows nobody saw may cost all of it.
    """
    return max(width, score * (1 - alpha ** (1 / rows)))


def _bootstrap_rows(rows: int, width: float, dense: float, room: float, alpha: float) -> int | None:
    """How many rows bring a bound up to the limit, which is `room` below the difference."""
    needed = scaled_rows(rows, width, room)
    if needed is None:
        return None
    share = room / dense if dense > 0 else 1.0
    if share >= 1:
        return max(needed, 1)
    seen = math.log(alpha) / math.log1p(-share) if share > 0 else math.inf
    return max(needed, math.ceil(seen)) if seen < MOST_ROWS else None


def _normal_quantile(alpha: float) -> float:
    from scipy.stats import norm

    return float(norm.isf(alpha))
