"""What every metric answers; what follows from it is the same for all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError, UsageError

Array = NDArray[np.float64]
Labels = Sequence[str] | None


@dataclass(frozen=True)
class ChosenTokenizer:
    """How a metric splits texts.

    Args:
        name: of the metric's own; empty where it has one alone.
        reason: why that and not the usual one, in words; empty of the usual one.
    """

    name: str = ""
    reason: str = ""


class Metric(ABC):
    """One number that says how good answers are, after sacreBLEU's `Metric`.

    A subclass says what it counts in each row, and what scores follow from the counts of drawn
    rows. Rows come in groups that are alike, so that each is counted once.

    Args:
        name: in reports, recipes and rules of the gate.
        label, unit, digits: how it is written.
        has_exact_test: whether it counts rows that are right (`right`).
        counted: what it is averaged over, and what is drawn in a bootstrap.
        scale: the best score less the worst one. A limit of so much allows everything.
        floor_rows: how many rows are looked at, at most, to find the floor.
        floor: the score of answers that know nothing of their rows, where that is always the same.
        advice: what to do where a score is at the floor.
        tokenizer: name of the one that splits texts, see `choose_tokenizer`; the same for all
            answers that are compared.
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
    advice: ClassVar[str] = "give more rows, or a model that is good at them"
    tokenizer: str = ""

    @abstractmethod
    def signature(self, labels: Labels) -> str:
        """All settings that change the score.

        Args:
            labels: all label names the model knows; None where the task has no classes.
        """

    @abstractmethod
    def statistics(
        self, systems: Sequence[Sequence[str]], references: Sequence[str], labels: Labels
    ) -> list[Array]:
        """[rows, statistics] of each system.

        Args:
            systems: the answers of each to the same rows.
            labels: all names that occur, for metrics of labels.
        """

    @abstractmethod
    def scores(self, statistics: Array, counts: Array) -> Array:
        """Scores [resamples] of resampled rows.

        Args:
            counts: [resamples, rows], how often each row was drawn.
        """

    def require(self, answers: Sequence[str], references: Sequence[str], labels: Labels) -> None:  # noqa: B027 # most need nothing
        """Raise `InputError` for answers or references that cannot be scored."""

    def require_references(self, references: Sequence[str]) -> None:  # noqa: B027 # as above
        """Raise where nothing can be scored with these references, before answers are made.

        Raises:
            InputError: the references are the reason.
            EnvironmentProblem: a package is not installed.
        """

    def choose_tokenizer(self, references: Sequence[str]) -> ChosenTokenizer:
        """A tokenizer that sees the words of the references."""
        return ChosenTokenizer()

    def require_tokenizer(self, name: str) -> None:
        """Raise for a tokenizer that was asked for and that the metric does not have.

        Raises:
            UsageError: there is none of that name.
            EnvironmentProblem: a package is not installed.
        """
        raise UsageError(f"{self.name} has no tokenizers to choose from", id="tokenizer-unknown")

    def uninformed(
        self,
        answers: Sequence[str],
        references: Sequence[str],
        labels: Labels,
        generator: np.random.Generator,
    ) -> Array:
        """Statistics [rows, statistics] of answers that know nothing of the rows.

        They are the model's own, dealt out anew to all rows, so that they are as many of each kind.
        """
        dealt = [answers[row] for row in generator.permutation(len(answers))]
        return self.statistics([dealt], references, labels)[0]

    def seen(self, statistics: Array, counts: Array) -> Array:
        """`scores` without what a score has of its own accord, by smoothing."""
        return self.scores(statistics, counts)

    def score(self, statistics: Array, counts: Array) -> float:
        """The score of all rows.

        Args:
            counts: [rows], how often each occurs.
        """
        return float(self.scores(statistics, counts[None])[0])

    def right(self, statistics: Array) -> NDArray[np.bool_] | None:
        """[rows]: whether the answer is right; None for metrics that do not count such rows.

        With it, differences get an exact test (McNemar's), and exact bounds (Tango's).
        """
        return None

    def discordant(self, dense: Array, pruned: Array, counts: Array) -> tuple[int, int] | None:
        """How many rows only (dense, pruned) has right; None where `right` is.

        Args:
            dense, pruned: statistics of the two models.
            counts: [rows], how often each occurs.
        """
        first, second = self.right(dense), self.right(pruned)
        if first is None or second is None:
            return None
        return int(counts[first & ~second].sum()), int(counts[second & ~first].sum())


class SumMetric(Metric):
    """A score that is a function of the sums of all rows' statistics.

    Args:
        deals: how often answers are dealt out anew to see what chance gives them, on average.
    """

    deals: ClassVar[int] = 5

    @abstractmethod
    def from_sums(self, sums: Array) -> Array:
        """[resamples, statistics] -> [resamples]."""

    def scores(self, statistics: Array, counts: Array) -> Array:
        return self.from_sums(counts @ statistics)

    def uninformed(
        self,
        answers: Sequence[str],
        references: Sequence[str],
        labels: Labels,
        generator: np.random.Generator,
    ) -> Array:
        """As in `Metric`, the mean of several deals."""
        total = super().uninformed(answers, references, labels, generator)
        for _ in range(1, self.deals):
            total += super().uninformed(answers, references, labels, generator)
        return total / self.deals


class MeanMetric(SumMetric):
    """The mean over all rows of what an answer is worth, 0-100. Statistics [rows, 2]: that, and 1.

    What a reference says is read once, for all systems.
    """

    @abstractmethod
    def read(self, reference: str) -> Any:
        """What a reference says."""

    @abstractmethod
    def worth(self, answer: str, reference: Any) -> float:
        """What an answer is worth beside what its reference says, from 0 to 1."""

    def statistics(
        self, systems: Sequence[Sequence[str]], references: Sequence[str], labels: Labels
    ) -> list[Array]:
        said = [self.read(reference) for reference in references]
        return [
            np.array([(self.worth(*pair), 1.0) for pair in zip(answers, said, strict=True)])
            for answers in systems
        ]

    def from_sums(self, sums: Array) -> Array:
        return 100.0 * sums[:, 0] / sums[:, 1]


def check_lengths(answers: Sequence[str], references: Sequence[str]) -> None:
    """Check that there is one answer for each reference.

    Raises:
        InputError: nothing to score, or the two sides differ in length.
    """
    if len(answers) != len(references):
        raise InputError(
            f"there are {len(answers)} outputs for {len(references)} references; "
            "give exactly one output per reference, in the same order",
            id="outputs-do-not-match-references",
        )
    if not references:
        raise InputError(
            "there are no rows to score; give a test file with at least one row", id="no-rows"
        )


def group_rows(*columns: Sequence[str]) -> tuple[list[Sequence[str]], NDArray[np.intp]]:
    """The distinct rows of some columns, column by column, and the number [rows] of each row."""
    numbers: dict[tuple[str, ...], int] = {}
    groups = [numbers.setdefault(row, len(numbers)) for row in zip(*columns, strict=True)]
    return [list(column) for column in zip(*numbers, strict=True)], np.array(groups, dtype=np.intp)
