"""What an acceptance rule is, and how numbers are held against their confidence bounds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

from compressor.errors import InputError
from compressor.report.schema import Report
from compressor.results import Outcome, Variant, Verdict
from compressor.tasks import Rows, Task

NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,15})?|\.[0-9]{1,15}"
Bounds = tuple[float, float] | None


class Rule(ABC):
    """One condition on every variant of a report."""

    option: ClassVar[str]  # the flag without dashes
    # What a run must measure for it.
    needs_test_rows: ClassVar[bool] = False
    needs_timing: ClassVar[bool] = False
    needs_engines: ClassVar[bool] = False
    batch_size: int | None = None  # of the timings; None for all

    @classmethod
    def field(cls) -> str:
        """The name of the option in a recipe's section `gate`."""
        return cls.option.replace("-", "_")

    @classmethod
    @abstractmethod
    def parse(cls, value: str) -> Self:
        """The rule for a value of the option; raises UsageError for one of the wrong form."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The value of the option on the command line, for example `bleu=0.5`."""

    @property
    def name(self) -> str:
        """The option with its value, for example `min-speedup 1.1@16`."""
        return f"{self.option} {self.text}"

    @property
    def subject(self) -> object:
        """The number that the rule limits; two rules of one kind must not limit the same one."""
        return None

    def require_task(self, task: Task) -> None:  # noqa: B027 - most rules are for all tasks
        """Raise `UsageError` if models of a task cannot meet the rule."""

    def require_rows(self, rows: Rows) -> None:  # noqa: B027 - most rules are for all rows
        """Raise `UsageError` if test rows do not measure what the rule is about."""

    @abstractmethod
    def check(self, report: Report, variant: Variant) -> tuple[Outcome, bool]:
        """The outcome for `variant`, and whether the measured number alone meets the rule.

        `met` of an inconclusive outcome is not decided yet.

        Raises:
            InputError: the report lacks the numbers that the rule needs.
        """

    def outcome(self, variant: Variant, verdict: Verdict, message: str, **numbers: Any) -> Outcome:
        """The rule's outcome for a variant."""
        return Outcome(
            rule=self.name,
            variant=variant.name,
            met=verdict == "passed",
            verdict=verdict,
            message=message,
            **numbers,
        )

    def not_measured(self, variant: Variant, what: str, held: Iterable[str]) -> InputError:
        """The error about numbers that the report lacks, with those it holds."""
        return InputError(
            f"the gate rule {self.name!r} cannot be checked for {variant.name}: the report holds "
            f"{what} {', '.join(held) or 'none'}; change the rule or measure what it needs",
            id="rule-not-measured",
        )


def judge(measured: float, interval: Bounds, within: Callable[[float], bool]) -> Verdict:
    """The verdict on a number by its confidence bounds, if they are known; NaN has failed.

    `within` says whether a value meets the rule; false for NaN.
    """
    if math.isnan(measured):
        return "failed"
    if interval is None or any(map(math.isnan, interval)):
        return "inconclusive"
    good = [within(end) for end in interval]
    return "passed" if all(good) else "inconclusive" if any(good) else "failed"


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Failed if one is, else inconclusive if one is; passed of none."""
    order: tuple[Verdict, ...] = ("passed", "inconclusive", "failed")
    return max(verdicts, key=order.index, default="passed")


def settled_by(enough: int | None, what: str, interval: object) -> str:
    """What an inconclusive rule is missing, as the end of a sentence."""
    if interval is None:
        return "; the report has no confidence interval of it"
    if enough is None:
        return "; no number would settle it, for what was measured is next to the limit"
    return f"; about {enough:,} {what} would settle it, if the measured value stayed"
