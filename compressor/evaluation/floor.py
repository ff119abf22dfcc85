"""Whether a metric sees anything in a model's answers, or the score is what chance gives anyway.

Where a model's own score is no better than that of answers that know nothing of their rows, no
smaller model can lose anything that the metric would show. "No significant difference" is then true
of every model, and says nothing.

Answers that know nothing are the model's own, dealt out anew to all rows: for each kind of answer
there are as many as before. So the floor of accuracy is not 1 / labels but what always giving the
same label, or drawing labels as often as the model gives them, has right by chance; the model that
always says the most frequent label is at it, however high its accuracy, and so is every model on
rows that all have the same label. The floor of correlations is 0, and of rankings a random order.
Of BLEU, which smooths, a score counts as 0 here where of any length no n-gram matches.

A score is at the floor unless a bootstrap shows it to be above: the difference of the two, on the
same draws of rows, must be positive in 95 % of them. Of very many rows some are looked at.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from compressor.errors import InputError
from compressor.evaluation.draws import resampled_counts
from compressor.evaluation.metric import Metric
from compressor.evaluation.metrics import main_metric, metrics_for
from compressor.tasks import Rows

DRAWS = 200
ERROR = 0.05
SEED = 12345


@dataclass(frozen=True)
class Floor:
    """What a metric sees in a model's answers.

    Args:
        dense: the model's score on the rows looked at.
        score: that of answers that know nothing of their rows.
        reached: whether the model's score cannot be told from that.
    """

    dense: float
    score: float
    reached: bool


def find_floor(metric: Metric, answers: Sequence[str], references: Sequence[str]) -> Floor:
    """Compare a model's score with what chance gives its answers; remembers the last few."""
    return _find(type(metric), metric.tokenizer, tuple(answers), tuple(references))


def require_sight(rows: Rows, answers: Sequence[str], asked: str) -> None:
    """Check that the main metric sees something in a dense model's answers to some rows.

    Args:
        asked: what needs that, as typed.

    Raises:
        InputError: the score is at the metric's floor.
    """
    metric = metrics_for(rows)[0]
    found = find_floor(metric, rows.judged(answers), rows.references)
    if found.reached:
        count, what = rows.counted
        raise InputError(
            f"{asked}: on {count:,} {what} the dense model's {metric.label} of "
            f"{main_metric(rows, answers)[0]:.{metric.digits}f} is at the metric's floor "
            f"({found.score:.{metric.digits}f} for answers that know nothing of the {what}), so "
            f"that no loss could be seen; {metric.advice}",
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
    labels = sorted({*answers, *references})
    (own,) = metric.statistics([answers], references, labels)
    every = np.ones(len(answers))
    dense = metric.score(own, every)
    if metric.floor is None:
        dealt = metric.uninformed(answers, references, labels, np.random.default_rng(SEED))
        score = metric.score(dealt, every)
    rows = np.arange(len(answers))
    gains = []
    for counts in resampled_counts(rows, DRAWS, SEED):
        floor = metric.seen(dealt, counts) if metric.floor is None else metric.floor
        gains.append(metric.seen(own, counts) - floor)
    shown = float(np.quantile(np.concatenate(gains), ERROR)) > 1e-9 * metric.scale
    return Floor(dense, score if metric.floor is None else metric.floor, not shown)
