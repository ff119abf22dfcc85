"""Accuracy, macro F1 and Matthews correlation from confusion counts, for many resamples at once.

Definitions are scikit-learn's (with which the tests compare): macro F1 averages over the labels
that occur in the gold or predicted column, and the F1 of a label without a correct row is 0; the
correlation is Gorodkin's 2004 generalization to many labels, 0 where it is undefined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.evaluation.translation import check_lengths
from compressor.results import Quality

Array = NDArray[np.float64]
Codes = NDArray[np.intp]


def score_classification(
    predicted: Sequence[str], gold: Sequence[str], labels: Sequence[str]
) -> Quality:
    """Accuracy and macro F1 (0-100) and Matthews correlation (-1 to 1).

    Args:
        predicted: label names chosen by the model, in the order of `gold`.
        gold: the correct label names.
        labels: all label names the model knows.

    Raises:
        InputError: no rows, different numbers of rows, or a label that is not in `labels`.
    """
    check_lengths(predicted, gold)
    columns = Columns(_encode(predicted, labels, "prediction"), _encode(gold, labels, "gold"))
    values = columns.metrics(np.ones((1, len(gold))), len(labels))
    signatures = {
        "accuracy": f"labels:{len(labels)}|scale:0-100",
        "macro_f1": f"labels:{len(labels)}|average:macro,labels seen|undefined:0|scale:0-100",
        "mcc": f"labels:{len(labels)}|multiclass:Gorodkin 2004|undefined:0|scale:-1-1",
    }
    return Quality(
        metrics={name: float(value[0]) for name, value in values.items()},
        signatures=signatures,
        rows=len(gold),
    )


@dataclass(frozen=True)
class ClassificationPair:
    """Two classifiers on the same rows; equal (gold, dense, pruned) rows form one group.

    Rows of a group contribute alike, so a resample needs only how often each group was drawn.
    """

    groups: NDArray[np.intp]  # [rows], the group each row belongs to
    dense: Columns
    pruned: Columns
    labels: int
    points: dict[str, tuple[float, float]]  # (dense, pruned) on the whole test set

    @classmethod
    def of(
        cls, dense: Sequence[str], pruned: Sequence[str], references: Sequence[str]
    ) -> ClassificationPair:
        """Group the rows of both classifiers; the labels are those that occur."""
        labels = sorted({*dense, *pruned, *references})
        rows = np.stack(
            [
                _encode(references, labels, "gold"),
                _encode(dense, labels, "prediction"),
                _encode(pruned, labels, "prediction"),
            ]
        )
        distinct, groups = np.unique(rows, axis=1, return_inverse=True)
        groups = groups.reshape(-1)
        dense_columns = Columns(distinct[1], distinct[0])
        pruned_columns = Columns(distinct[2], distinct[0])
        whole = np.bincount(groups).astype(np.float64)[None]
        dense_values = dense_columns.metrics(whole, len(labels))
        pruned_values = pruned_columns.metrics(whole, len(labels))
        points = {
            name: (float(dense_values[name][0]), float(pruned_values[name][0]))
            for name in dense_values
        }
        return cls(groups, dense_columns, pruned_columns, len(labels), points)

    @property
    def exact_p(self) -> dict[str, float]:
        """McNemar's exact test of accuracy."""
        return {metric: mcnemar(*rows) for metric, rows in self.discordant.items()}

    @property
    def discordant(self) -> dict[str, tuple[int, int]]:
        """Of accuracy: rows that only the dense model has right, and only the pruned one."""
        counts = np.bincount(self.groups)
        gain = self.pruned.right.astype(int) - self.dense.right  # [groups], -1, 0 or 1
        return {"accuracy": (int(counts[gain < 0].sum()), int(counts[gain > 0].sum()))}

    def scores(self, counts: Array) -> dict[str, tuple[Array, Array]]:
        """Scores of both classifiers on resampled test sets.

        Args:
            counts: [resamples, groups], how many rows of each group were drawn.

        Returns:
            metric -> (dense, pruned), each [resamples].
        """
        dense = self.dense.metrics(counts, self.labels)
        pruned = self.pruned.metrics(counts, self.labels)
        return {name: (dense[name], pruned[name]) for name in dense}


@dataclass(frozen=True)
class Columns:
    """One classifier's predictions beside the gold labels, both as label numbers [groups]."""

    predicted: Codes
    gold: Codes

    @property
    def right(self) -> NDArray[np.bool_]:
        """[groups]: whether the prediction is the gold label."""
        return self.predicted == self.gold

    def metrics(self, counts: Array, labels: int) -> dict[str, Array]:
        """All metrics for each resample.

        Args:
            counts: [resamples, groups], how many rows of each group were drawn.
            labels: number of label names.

        Returns:
            metric -> [resamples].
        """
        right = self.right
        hits = _sum_by_label(counts[:, right], self.gold[right], labels)  # [resamples, labels]
        predicted = _sum_by_label(counts, self.predicted, labels)
        gold = _sum_by_label(counts, self.gold, labels)
        rows = counts.sum(axis=1)
        correct = hits.sum(axis=1)
        return {
            "accuracy": 100.0 * correct / rows,
            "macro_f1": _macro_f1(hits, predicted + gold),
            "mcc": _matthews(correct, rows, predicted, gold),
        }


def mcnemar(first: int, second: int) -> float:
    """Two-sided p-value of McNemar's exact test.

    If neither model is better, each row that only one of them has right is as likely to be the
    first one's as the second one's.

    Args:
        first: rows that only the first model has right.
        second: rows that only the second model has right.
    """
    from scipy.stats import binomtest

    return float(binomtest(first, first + second).pvalue) if first + second else 1.0


def _macro_f1(hits: Array, either: Array) -> Array:
    seen = either > 0  # predicted or gold at least once
    f1 = 2.0 * hits / np.where(seen, either, 1.0)
    return 100.0 * f1.sum(axis=1) / seen.sum(axis=1)


def _matthews(correct: Array, rows: Array, predicted: Array, gold: Array) -> Array:
    covariance = correct * rows - (predicted * gold).sum(axis=1)
    spread = (rows**2 - (predicted**2).sum(axis=1)) * (rows**2 - (gold**2).sum(axis=1))
    defined = spread > 0
    return np.where(defined, covariance / np.sqrt(np.where(defined, spread, 1.0)), 0.0)


def _sum_by_label(counts: Array, codes: Codes, labels: int) -> Array:
    """Add up the columns of [resamples, groups] that share a label: [resamples, labels]."""
    sums = np.zeros((counts.shape[0], labels))
    if codes.size:
        order = np.argsort(codes, kind="stable")
        present, starts = np.unique(codes[order], return_index=True)
        sums[:, present] = np.add.reduceat(counts[:, order], starts, axis=1)
    return sums


def _encode(names: Sequence[str], labels: Sequence[str], column: str) -> Codes:
    number = {label: code for code, label in enumerate(labels)}
    unknown = next(((row, name) for row, name in enumerate(names) if name not in number), None)
    if unknown is not None:
        raise InputError(
            f"{column} {unknown[1]!r} in row {unknown[0] + 1} is not a label of the model; "
            f"its labels are {', '.join(labels)}",
            id="label-unknown",
        )
    return np.array([number[name] for name in names], dtype=np.intp)
