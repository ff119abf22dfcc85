"""Whether a model's score is above the metric's floor, the score of uninformed outputs.

If a model scores no better than uninformed outputs, the metric cannot show a smaller model's loss.
"No significant difference" then holds for every model, and proves nothing.

Uninformed outputs are the model's own outputs in random order. So the floor of accuracy is not
1 / labels, but the chance level of the model's label frequencies; a model that always predicts the
most frequent label is at the floor, whatever its accuracy, and so is every model on rows that all
have the same label. The floor of correlations is 0, and that of rankings a random order. For BLEU,
which smooths, a score without a matching n-gram of some length counts as 0 here.

A score is at the floor unless a bootstrap shows it to be above: the difference of the two, on the
same draws of rows, must be positive in 95 % of the draws. Of very many rows a sample is used.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from compressor.errors import InputError
from compressor.evaluation.metric import Metric, resampled_counts
from compressor.evaluation.metrics import main_metric, metrics_for
from compressor.tasks import Rows

DRAWS = 200
ERROR = 0.05
SEED = 12345


@dataclass(frozen=True)
class Floor:
    """A metric's floor for a model's outputs."""

    dense: float  # the model's score on the rows used
    score: float  # that of uninformed outputs
    reached: bool  # whether the model's score is not significantly above it


def find_floor(metric: Metric, answers: Sequence[str], references: Sequence[str]) -> Floor:
    """Compare a model's score with that of uninformed outputs; the last results are cached."""
    return _find(type(metric), metric.tokenizer, tuple(answers), tuple(references))


def require_sight(rows: Rows, answers: Sequence[str], asked: str) -> None:
    """Raise InputError if a dense model's main metric is at its floor; `asked` needs it."""
    metric = metrics_for(rows)[0]
    floor = find_floor(metric, rows.judged(answers), rows.references)
    if floor.reached:
        count, what = rows.counted
        raise InputError(
            f"{asked}: on {count:,} {what} the dense model's {metric.label} of "
            f"{main_metric(rows, answers)[0]:.{metric.digits}f} is at the metric's floor "
            f"({floor.score:.{metric.digits}f} for outputs in random order), so it could not show "
            f"a loss; {metric.advice}",
            id="metric-at-floor",
        )


@lru_cache(maxsize=16)
def _find(
    kind: type[Metric], tokenizer: str, answers: tuple[str, ...], references: tuple[str, ...]
) -> Floor:
    metric = kind()
    metric.tokenizer = tokenizer
    if len(answers) > metric.floor_rows:
        drawn = random.Random(SEED).sample(range(len(answers)), metric.floor_rows)
        answers, references = (
            tuple(texts[row] for row in drawn) for texts in (answers, references)
        )
    (statistics,) = metric.statistics([answers], references)
    every = np.ones(len(answers))
    draws = np.concatenate(list(resampled_counts(np.arange(len(answers)), DRAWS, SEED)))
    gains = metric.unsmoothed(statistics, draws)
    if metric.floor is None:
        uninformed = metric.uninformed(answers, references, np.random.default_rng(SEED))
        floor = metric.score(uninformed, every)
        gains = gains - metric.unsmoothed(uninformed, draws)
    else:
        floor = metric.floor
        gains = gains - floor
    is_above = float(np.quantile(gains, ERROR)) > 1e-9 * metric.scale
    return Floor(metric.score(statistics, every), floor, not is_above)
