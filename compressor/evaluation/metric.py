"""The interface of metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from compressor.errors import UsageError

Array = NDArray[np.float64]
Labels = Sequence[str] | None


@dataclass(frozen=True)
class ChosenTokenizer:
    """The tokenizer that a metric chose.

    Args:
        name: as the metric calls it; empty for its default.
        reason: a sentence on why it is not the default; empty for the default.
    """

    name: str = ""
    reason: str = ""


class Metric(ABC):
    """One number for the quality of outputs, after sacreBLEU's `Metric`.

    A subclass defines statistics of each row, and scores from the statistics of drawn rows. Equal
    rows are grouped, so that their statistics are computed once.

    Args:
        name: in reports, recipes and rules of the gate.
        label, unit, digits: how scores are written.
        has_exact_test: whether it counts correct rows (`right`).
        counted: what it is averaged over, and drawn in a bootstrap.
        scale: the best score minus the worst one, which is the largest possible drop.
        floor_rows: largest number of rows for computing the floor.
        floor: the score of uninformed outputs, if it is a constant.
        deals: number of random orders that `uninformed` averages over.
        advice: what to do if a score is at the floor.
        tokenizer: name of its tokenizer, see `choose_tokenizer`; the same for all models that are
            compared.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    unit: ClassVar[str] = ""
    digits: ClassVar[int] = 2
    has_exact_test: ClassVar[bool] = False
    counted: ClassVar[str] = "rows"
    scale: ClassVar[float] = 100.0
    floor_rows: ClassVar[int] = 20_000
    floor: ClassVar[float | None] = None
    deals: ClassVar[int] = 1
    advice: ClassVar[str] = "give more rows, or a model that is good at them"
    tokenizer: str = ""

    @abstractmethod
    def signature(self, labels: Labels) -> str:
        """All settings that change the score.

        Args:
            labels: all label names of the model; None if the task has no classes.
        """

    @abstractmethod
    def statistics(
        self, systems: Sequence[Sequence[str]], references: Sequence[str]
    ) -> list[Array]:
        """[rows, statistics] of each system.

        Args:
            systems: outputs of each for the same rows.
        """

    @abstractmethod
    def scores(self, statistics: Array, counts: Array) -> Array:
        """Scores [resamples] of resampled rows.

        Args:
            counts: [resamples, rows], number of draws of each row.
        """

    def require(self, answers: Sequence[str], references: Sequence[str]) -> None:  # noqa: B027 # most need nothing
        """Raise `InputError` for outputs or references that cannot be scored."""

    def require_references(self, references: Sequence[str]) -> None:  # noqa: B027 # as above
        """Check that the metric can be computed, before the model runs.

        Raises:
            InputError: not with these references.
            EnvironmentProblem: a package is not installed.
        """

    def choose_tokenizer(self, references: Sequence[str]) -> ChosenTokenizer:
        """A tokenizer that suits the script of the references."""
        return ChosenTokenizer()

    def require_tokenizer(self, name: str) -> None:
        """Check a tokenizer that the user named.

        Raises:
            UsageError: the metric has none of that name.
            EnvironmentProblem: a package is not installed.
        """
        raise UsageError(f"{self.name} has no choice of tokenizers", id="tokenizer-unknown")

    def uninformed(
        self, answers: Sequence[str], references: Sequence[str], generator: np.random.Generator
    ) -> Array:
        """Statistics [rows, statistics] of uninformed outputs: the model's own in random order.

        The mean of `deals` random orders.
        """
        total: Any = 0.0
        for _ in range(self.deals):
            permuted = [answers[row] for row in generator.permutation(len(answers))]
            total += self.statistics([permuted], references)[0]
        mean: Array = total / self.deals
        return mean

    def unsmoothed(self, statistics: Array, counts: Array) -> Array:
        """`scores` without smoothing."""
        return self.scores(statistics, counts)

    def score(self, statistics: Array, counts: Array) -> float:
        """The score of all rows.

        Args:
            counts: [rows], number of occurrences of each.
        """
        return float(self.scores(statistics, counts[None])[0])

    def right(self, statistics: Array) -> NDArray[np.bool_] | None:
        """[rows]: whether the output is correct; None for metrics that do not count correct rows.

        With it, differences get an exact test (McNemar's), and exact bounds (Tango's).
        """
        return None

    def discordant(self, dense: Array, pruned: Array, counts: Array) -> tuple[int, int] | None:
        """Numbers of rows that are correct for (dense, pruned) only; None if `right` is None.

        Args:
            dense, pruned: statistics of the two models.
            counts: [rows], number of occurrences of each.
        """
        first, second = self.right(dense), self.right(pruned)
        if first is None or second is None:
            return None
        return int(counts[first & ~second].sum()), int(counts[second & ~first].sum())


class SumMetric(Metric):
    """A score that is a function of the sums of all rows' statistics."""

    deals = 5

    @abstractmethod
    def from_sums(self, sums: Array) -> Array:
        """[resamples, statistics] -> [resamples]."""

    def scores(self, statistics: Array, counts: Array) -> Array:
        return self.from_sums(counts @ statistics)


class MeanMetric(SumMetric):
    """The mean score of all rows, 0-100. Statistics [rows, 2]: the row's score, and 1.

    References are parsed once for all systems.
    """

    @abstractmethod
    def read(self, reference: str) -> Any:
        """Parse a reference."""

    @abstractmethod
    def row_score(self, answer: str, reference: Any) -> float:
        """The score of an output, given its parsed reference, from 0 to 1."""

    def statistics(
        self, systems: Sequence[Sequence[str]], references: Sequence[str]
    ) -> list[Array]:
        parsed = [self.read(reference) for reference in references]
        return [
            np.array([(self.row_score(*pair), 1.0) for pair in zip(answers, parsed, strict=True)])
            for answers in systems
        ]

    def from_sums(self, sums: Array) -> Array:
        return 100.0 * sums[:, 0] / sums[:, 1]


def group_rows(*columns: Sequence[str]) -> tuple[list[Sequence[str]], NDArray[np.intp]]:
    """The distinct rows of some columns, column by column, and the number [rows] of each row."""
    numbers: dict[tuple[str, ...], int] = {}
    groups = [numbers.setdefault(row, len(numbers)) for row in zip(*columns, strict=True)]
    return [list(column) for column in zip(*numbers, strict=True)], np.array(groups, dtype=np.intp)
