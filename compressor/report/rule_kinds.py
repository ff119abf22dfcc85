"""The kinds of acceptance rules: how much quality a smaller model may lose, how much faster it
must be, how large it may be. A kind is one class; `RULE_KINDS` lists them, `rules` checks them.

What is measured on rows or by a clock is held against its 95 % confidence bounds, not against its
estimate: a rule is passed if the whole interval meets it, failed if none of it does, and
inconclusive where the interval contains the limit. Sizes and counts are exact.

A speed-up is the ratio of two models that were timed in turn in one run; other timings are not
comparable, and there are no rules about them.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from compressor.errors import InputError, UsageError, did_you_mean
from compressor.evaluation import METRICS, metrics_of, rows_to_settle, scaled_rows
from compressor.report import facts, numbers, phrases
from compressor.report.schema import Report
from compressor.results import Outcome, Timing, Variant, Verdict
from compressor.tasks import Rows, Task

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,15})?|\.[0-9]{1,15}"
_Bounds = tuple[float, float] | None


class Rule(ABC):
    """One condition on every variant of a report.

    Class attributes: `option`, the flag without dashes; `needs_test_rows` and `needs_timing`, what
    a run must measure for it, the latter at `batch_size`.
    """

    option: ClassVar[str]
    needs_test_rows: ClassVar[bool] = False
    needs_timing: ClassVar[bool] = False
    batch_size: int | None = None

    @classmethod
    def field(cls) -> str:
        """The name of the option in a recipe's section `gate`."""
        return cls.option.replace("-", "_")

    @classmethod
    @abstractmethod
    def parse(cls, value: str) -> Self:
        """The rule that a value of the option asks for.

        Raises:
            UsageError: a value of the wrong form.
        """

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
        """What `variant` shows of the rule, and whether the number measured alone meets it.

        Of an inconclusive rule, `met` says nothing yet.

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


def judge(measured: float, interval: _Bounds, within: Callable[[float], bool]) -> Verdict:
    """The verdict on a number by its confidence bounds; what is not a number has failed.

    Args:
        interval: None if nothing tells how certain the number is.
        within: whether a value meets the rule; false for NaN.
    """
    if math.isnan(measured):
        return "failed"
    if interval is None or any(map(math.isnan, interval)):
        return "inconclusive"
    good = [within(end) for end in interval]
    return "passed" if all(good) else "inconclusive" if any(good) else "failed"


@dataclass(frozen=True)
class MaxDropRule(Rule):
    """Dense minus pruned must not be above `value`, on the metric's own scale."""

    option = "max-metric-drop"
    needs_test_rows = True
    metric: str
    value: float

    @classmethod
    def parse(cls, value: str) -> Self:
        found = re.fullmatch(rf"\s*([A-Za-z0-9_@]+)\s*=\s*({_NUMBER})\s*", value, re.ASCII)
        if found is None:
            raise UsageError(
                f"--{cls.option} {value!r} is not METRIC=VALUE with a value of at least 0; "
                f"write for example --{cls.option} bleu=0.5",
                id="max-drop-malformed",
            )
        metric = found[1].lower()
        if metric not in METRICS:
            raise UsageError(
                f"--{cls.option} {value!r}: there is no metric {metric!r}; choose from "
                f"{', '.join(METRICS)}{did_you_mean(metric, METRICS)}",
                id="metric-unknown",
            )
        return cls(metric, float(found[2]))

    @property
    def text(self) -> str:
        return f"{self.metric}={self.value:.15g}"

    @property
    def subject(self) -> object:
        return self.metric

    def require_task(self, task: Task) -> None:
        self._require_one_of((*task.metrics, *task.ranked_metrics), f"a {task.name} metric")

    def require_rows(self, rows: Rows) -> None:
        self._require_one_of(metrics_of(rows), f"measured on {', '.join(rows.files)}")

    def _require_one_of(self, metrics: tuple[str, ...], what: str) -> None:
        if self.metric not in metrics:
            raise UsageError(
                f"--{self.name}: {self.metric} is not {what}; use {' or '.join(metrics)}",
                id="metric-of-another-task",
            )

    def check(self, report: Report, variant: Variant) -> tuple[Outcome, bool]:
        dense, pruned = self._scores(report, variant)
        difference = pruned - dense
        bounds, rows, enough = self._bounds(report, variant, difference)
        verdict = judge(difference, bounds, self._is_met)
        style = facts.metric_style(self.metric)
        score, reference, lost = map(style.score, (pruned, dense, -difference))
        drops = None if bounds is None else (-bounds[1], -bounds[0])
        interval = "" if drops is None else f" {numbers.interval(drops, style.digits)}"
        message = (
            f"{style.label} {score} against {reference} dense: a drop of {lost}{interval}, "
            f"at most {self.value:.15g} allowed"
        )
        if verdict == "inconclusive":
            message += _settled_by(enough, f"test {style.counted} instead of {rows:,}", bounds)
        outcome = self.outcome(
            variant, verdict, message,
            measured=-difference, limit=self.value, interval=drops, enough=enough,
        )  # fmt: skip
        return outcome, self._is_met(difference)

    def _is_met(self, difference: float) -> bool:
        return -difference <= self.value + facts.ROUNDING  # false for NaN

    def _bounds(
        self, report: Report, variant: Variant, difference: float
    ) -> tuple[_Bounds, int, int | None]:
        """Bounds of the difference, on how many rows, and how many would settle the rule."""
        found = facts.comparison(variant, self.metric)
        rows = facts.test_rows(report, variant)
        bounds = None if found is None else facts.bounds(report, variant, found)
        if found is None or bounds is None:
            return None, rows, None
        shift = difference - found.difference  # none, in a report of one run
        enough = rows_to_settle(found, rows, self.value + shift)
        return (bounds[0] + shift, bounds[1] + shift), rows, _two_digits(enough)

    def _scores(self, report: Report, variant: Variant) -> tuple[float, float]:
        """Dense and pruned value of the metric."""

        def scores(metric: str) -> tuple[float, float] | None:
            dense, pruned = facts.value(report.dense, metric), facts.value(variant, metric)
            if dense is not None and pruned is not None:
                return dense, pruned
            found = facts.comparison(variant, metric)
            return None if found is None else (found.dense, found.pruned)

        found = scores(self.metric)
        if found is None:
            held = (metric for metric in facts.metrics(report) if scores(metric))
            raise self.not_measured(variant, "metrics", held)
        return found


@dataclass(frozen=True)
class MinSpeedupRule(Rule):
    """Sentences per second over dense must be at least `ratio`, at one or every batch size."""

    option = "min-speedup"
    needs_timing = True
    ratio: float
    batch_size: int | None = None

    @classmethod
    def parse(cls, value: str) -> Self:
        found = re.fullmatch(rf"\s*({_NUMBER})\s*(?:@\s*([0-9]{{1,9}})\s*)?", value, re.ASCII)
        if found is None or float(found[1]) == 0 or (found[2] and int(found[2]) == 0):
            raise UsageError(
                f"--{cls.option} {value!r} is neither RATIO nor RATIO@BATCH with numbers above 0; "
                f"write for example --{cls.option} 1.1@16",
                id="min-speedup-malformed",
            )
        return cls(float(found[1]), int(found[2]) if found[2] else None)

    @property
    def text(self) -> str:
        where = "" if self.batch_size is None else f"@{self.batch_size}"
        return f"{self.ratio:.15g}{where}"

    @property
    def subject(self) -> object:
        return self.batch_size

    def check(self, report: Report, variant: Variant) -> tuple[Outcome, bool]:
        rows = self._speedups(report, variant)
        verdicts = [judge(ratio, row.speedup_interval, self._is_met) for row, ratio in rows]
        worst = worst_of(verdicts)
        shown = [pair for pair, verdict in zip(rows, verdicts, strict=True) if verdict == worst]
        measured = phrases.join(
            [f"{phrases.speedup(row)} at batch {row.batch_size}" for row, _ in shown]
        )
        message = f"speed-up {measured}, at least {self.ratio:.15g} required"
        row, ratio = min(shown, key=lambda pair: pair[1])
        enough = None
        if worst == "inconclusive":
            enough = self._runs_to_settle(row, ratio)
            what = f"timed batches instead of {row.runs:,} (--bench-seconds)"
            message += _settled_by(enough, what, row.speedup_interval)
        outcome = self.outcome(
            variant, worst, message,
            measured=ratio, limit=self.ratio, interval=row.speedup_interval, enough=enough,
        )  # fmt: skip
        return outcome, all(self._is_met(ratio) for _, ratio in rows)

    def _is_met(self, ratio: float) -> bool:
        return ratio >= self.ratio - facts.ROUNDING

    def _runs_to_settle(self, row: Timing, ratio: float) -> int | None:
        if row.speedup_interval is None or not math.isfinite(ratio) or row.runs < 1:
            return None
        low, high = row.speedup_interval
        width = ratio - low if ratio >= self.ratio else high - ratio
        return _two_digits(scaled_rows(row.runs, width, abs(ratio - self.ratio)))

    def _speedups(self, report: Report, variant: Variant) -> list[tuple[Timing, float]]:
        """The timings that the rule limits, with their speed-ups; none of them may be missing."""
        rows = [(row, row.speedup or 0.0) for row in facts.with_speedup(report, variant)]
        held = {row.batch_size for row, _ in rows}
        wanted = set(facts.batch_sizes(report)) if self.batch_size is None else {self.batch_size}
        if not wanted or not wanted <= held:
            raise self.not_measured(variant, "speed-ups at batch sizes", map(str, sorted(held)))
        return [pair for pair in rows if pair[0].batch_size in wanted]


@dataclass(frozen=True)
class LargestRule(Rule):
    """A number that is known exactly must not be above `value`."""

    value: float
    unit: ClassVar[str]
    what: ClassVar[str]

    @classmethod
    def parse(cls, value: str) -> Self:
        return cls(float(value))

    @property
    def text(self) -> str:
        return f"{self.value:.15g}"

    @abstractmethod
    def number(self, report: Report, variant: Variant) -> float:
        """What the rule limits, on the scale of `value`."""

    def check(self, report: Report, variant: Variant) -> tuple[Outcome, bool]:
        found = self.number(report, variant)
        within = found <= self.value + facts.ROUNDING  # false for NaN
        message = (
            f"{self.what} {found:.4g}{self.unit}, at most {self.value:.15g}{self.unit} allowed"
        )
        verdict: Verdict = "passed" if within else "failed"
        outcome = self.outcome(variant, verdict, message, measured=found, limit=self.value)
        return outcome, within


@dataclass(frozen=True)
class MaxSizeRule(LargestRule):
    """Megabytes (1,000,000 bytes) of the graphs with their weights, in the precision shipped."""

    option = "max-size-mb"
    unit, what = " MB", "ONNX size"

    def number(self, report: Report, variant: Variant) -> float:
        return variant.onnx_bytes / 1e6


@dataclass(frozen=True)
class MaxMacsRule(LargestRule):
    """Multiply-adds as a share of the dense model's."""

    option = "max-macs"
    unit, what = " of dense", "multiply-adds"

    def number(self, report: Report, variant: Variant) -> float:
        return variant.macs_share


@dataclass(frozen=True)
class MaxParametersRule(LargestRule):
    """Parameters as a share of the dense model's."""

    option = "max-parameters"
    unit, what = " of dense", "parameters"

    def number(self, report: Report, variant: Variant) -> float:
        dense = report.dense.parameters
        return variant.parameters / dense if dense > 0 else math.nan


RULE_KINDS: tuple[type[Rule], ...] = (
    MaxDropRule,
    MinSpeedupRule,
    MaxSizeRule,
    MaxMacsRule,
    MaxParametersRule,
)


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Failed if one is, else inconclusive if one is; passed of none."""
    order: tuple[Verdict, ...] = ("passed", "inconclusive", "failed")
    return max(verdicts, key=order.index, default="passed")


def _two_digits(count: int | None) -> int | None:
    return None if count is None else numbers.two_digits_up(count)


def _settled_by(enough: int | None, what: str, interval: object) -> str:
    """What an inconclusive rule is missing, as the end of a sentence."""
    if interval is None:
        return "; the report has no confidence interval of it"
    if enough is None:
        return "; no number would settle it, for what was measured is next to the limit"
    return f"; about {enough:,} {what} would settle it, if the measured value stayed"
