"""How the answers to each task are scored: one literal table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from compressor.evaluation.classification import ClassificationPair, score_classification
from compressor.evaluation.translation import TranslationPair, score_translation
from compressor.results import Quality
from compressor.tasks import TASKS

Array = NDArray[np.float64]


class Pair(Protocol):
    """Two models' answers to the same rows, ready to be scored on any resample of the rows."""

    @property
    def groups(self) -> NDArray[np.intp]:
        """[rows]: rows with the same number contribute alike."""

    @property
    def points(self) -> dict[str, tuple[float, float]]:
        """metric -> (dense, pruned) on all rows."""

    @property
    def exact_p(self) -> dict[str, float]:
        """metric -> two-sided p-value, for the metrics that have an exact test."""

    @property
    def discordant(self) -> dict[str, tuple[int, int]]:
        """metric -> rows that only (dense, pruned) has right, for metrics that count these."""

    def scores(self, counts: Array) -> dict[str, tuple[Array, Array]]:
        """metric -> (dense, pruned), each [resamples], from counts [resamples, groups]."""


class Metrics(NamedTuple):
    """The metrics of one task.

    Args:
        score: all metrics from answers, references and the checkpoint's label names.
        pair: dense answers, pruned answers and references, prepared for resampling.
    """

    score: Callable[[Sequence[str], Sequence[str], Sequence[str] | None], Quality]
    pair: Callable[[Sequence[str], Sequence[str], Sequence[str]], Pair]


METRICS: dict[str, Metrics] = {
    "translation": Metrics(
        lambda answers, references, _: score_translation(answers, references), TranslationPair.of
    ),
    "classification": Metrics(
        lambda answers, references, labels: score_classification(answers, references, labels or []),
        ClassificationPair.of,
    ),
}


def metrics_of(task: str) -> Metrics:
    """The line of `METRICS` for a task.

    Raises:
        UsageError: an unknown task.
    """
    return METRICS[TASKS[task].name]


def score_answers(
    task: str, answers: Sequence[str], references: Sequence[str], labels: Sequence[str] | None
) -> Quality:
    """All metrics of a task.

    Args:
        answers: of the model: translations, or label names.
        references: reference translations, or the right label names, in the same order.
        labels: all label names the model knows; None where the task has no classes.

    Raises:
        UsageError: an unknown task.
        InputError: no rows, another number of answers than references, or an unknown label.
    """
    return metrics_of(task).score(answers, references, labels)


def main_metric(
    task: str, answers: Sequence[str], references: Sequence[str], labels: Sequence[str] | None
) -> tuple[float, str]:
    """The task's main metric (0-100), and its signature with its name."""
    quality, name = score_answers(task, answers, references, labels), TASKS[task].main_metric
    return quality.metrics[name], f"{name}|{quality.signatures[name]}"
