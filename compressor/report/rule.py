"""The base of all acceptance rules of `compress gate`, and how one judges a measured number."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar, Literal, Self

from compressor.errors import InputError, UsageError
from compressor.report.schema import Report
from compressor.steps.results import Interval, Outcome, Variant, Verdict
from compressor.tasks import Rows

Inconclusive = Literal["fail", "pass", "measured"]  # what an inconclusive rule counts as
NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,15})?|\.[0-9]{1,15}"


class Rule(ABC):
    """One condition that `compress gate` holds against every delivered variant of a report.

    A subclass is a frozen dataclass of its limits, with an option of its own, and stands in
    `RULE_KINDS` of `rules.py`. It says how its option is written (`parse`, `text`), what it limits
    (`subject`), what a run must measure for it (`needs_*`), and the outcome for one variant
    (`check`). A rule on something measured is judged by the 95 % confidence interval of it with
    `judge`: passed if the whole interval is allowed, failed if none of it is, else inconclusive,
    with what would decide it. A rule on something exact is judged by the number; `LargestRule` is
    the base of these. What an inconclusive outcome counts as is not the rule's business.
    """

    option: ClassVar[str]  # the flag without dashes
    # What a run must measure for it.
    needs_test_rows: ClassVar[bool] = False
    needs_timing: ClassVar[bool] = False
    needs_engines: ClassVar[bool] = False
    batch_size: int | None = None  # of the timings that it needs; None for all

    @classmethod
    def field(cls) -> str:
        """The name of its option in a recipe, and in the class `Gate` of options."""
        return cls.option.replace("-", "_")

    @classmethod
    @abstractmethod
    def parse(cls, value: str) -> Self:
        """Make the rule from a value of its option.

        Args:
            value: The text after the flag, for example `bleu=0.5`.

        Returns:
            The rule.

        Raises:
            UsageError: The text has the wrong form, or names something unknown.
        """

    @property
    @abstractmethod
    def text(self) -> str:
        """The value of the option that `parse` makes this rule from, for example `bleu=0.5`."""

    @property
    def name(self) -> str:
        """The rule as outcomes and messages name it: `max-metric-drop bleu=0.5`."""
        return f"{self.option} {self.text}"

    @property
    def subject(self) -> object:
        """The number that the rule limits; two rules of one kind must not limit the same one."""
        return None

    def require_rows(self, rows: Rows) -> None:  # noqa: B027 - most rules are for all rows
        """Check, before a run, that test rows measure what the rule is about.

        Args:
            rows: The test rows of the run.

        Raises:
            UsageError: They do not.
        """

    @abstractmethod
    def check(self, report: Report, variant: Variant) -> Outcome:
        """Hold the rule against one variant.

        Args:
            report: The report that holds the variant.
            variant: A build of `report` that an artifact runs by default.

        Returns:
            The outcome. Its `verdict` follows from the interval; its `met` says whether the
            measured number alone meets the rule, and `rules.check` decides what counts.

        Raises:
            InputError: The report lacks the numbers that the rule needs; see `not_measured`.
        """

    def not_measured(self, variant: Variant, what: str, held: Iterable[str]) -> InputError:
        """The error about numbers that the report lacks.

        Args:
            variant: The variant that the rule was to be held against.
            what: What the rule needs, in the plural: `speed-ups at batch sizes`.
            held: Those that the report holds.
        """
        return InputError(
            f"the gate rule {self.name!r} cannot be checked for {variant.name}: the report holds "
            f"{what} {', '.join(held) or 'none'}; change the rule or measure what it needs",
            id="rule-not-measured",
        )


def match_value(pattern: str, value: str, option: str, form: str) -> re.Match[str]:
    """The match of a value with a rule's pattern; raises UsageError if there is none."""
    match = re.fullmatch(pattern, value, re.ASCII)
    if match is None:
        raise UsageError(f"--{option} {value!r} is malformed; write {form}", id="rule-malformed")
    return match


def judge(measured: float, interval: Interval | None, allows: Callable[[float], bool]) -> Verdict:
    """Passed if the whole interval is allowed, failed if none of it is; NaN has failed."""
    if math.isnan(measured):
        return "failed"
    if interval is None or any(map(math.isnan, interval)):
        return "inconclusive"
    good = [allows(end) for end in interval]
    return "passed" if all(good) else "inconclusive" if any(good) else "failed"


def decided_by(enough: int | None, counted: str, instead: str, value: str, interval: object) -> str:
    """Say what an inconclusive rule is missing, as the end of a sentence.

    Args:
        enough: How many of what is counted would about decide it; None if no number would.
        counted: What is counted, in the plural: `test rows`.
        instead: How many there were, and how to have more: `instead of 500`.
        value: What is measured: `drop`.
        interval: The interval of what was measured; None without one.
    """
    if interval is None:
        return "; the report has no confidence interval of it"
    if enough is None:
        return f"; more {counted} will not decide this: the {value} equals the limit"
    return (
        f"; about {enough:,} {counted} {instead} are needed to decide, if the {value} stays the "
        "same"
    )
