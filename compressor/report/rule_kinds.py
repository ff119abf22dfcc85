"""The kinds of acceptance rules: how much quality a smaller model may lose, how much faster it
must be, how large it may be. A kind is one class; `RULE_KINDS` lists them, `rules` checks them.

What is measured on rows or by a clock is held against its 95 % confidence bounds, not against its
estimate: a rule is passed if the whole interval meets it, failed if none of it does, and
inconclusive if the interval contains the limit. Sizes and counts are exact.
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
from compressor.results import ROUNDING, Outcome, Timing, Variant, Verdict
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


@dataclass(frozen=True)
class MaxDropRule(Rule):
    """Dense minus pruned must not be above `value`, on the metric's own scale."""

    option = "max-metric-drop"
    needs_test_rows = True
    metric: str
    value: float

    @classmethod
    def parse(cls, value: str) -> Self:
        match = re.fullmatch(rf"\s*([A-Za-z0-9_@]+)\s*=\s*({NUMBER})\s*", value, re.ASCII)
        if match is None:
            raise UsageError(
                f"--{cls.option} {value!r} is not METRIC=VALUE with a value of at least 0; "
                f"write for example --{cls.option} bleu=0.5",
                id="max-drop-malformed",
            )
        metric = match[1].lower()
        if metric not in METRICS:
            raise UsageError(
                f"--{cls.option} {value!r}: there is no metric {metric!r}; choose from "
                f"{', '.join(METRICS)}{did_you_mean(metric, METRICS)}",
                id="metric-unknown",
            )
        return cls(metric, float(match[2]))

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
        compared = facts.comparison(variant, self.metric)
        if compared is None:
            raise self.not_measured(variant, "metrics", (x.metric for x in variant.comparisons))
        rows, style = facts.test_rows(report, variant), facts.metric_style(self.metric)
        bounds = facts.bounds(report, variant, compared)
        verdict = judge(compared.difference, bounds, self._is_met)
        # A rule that allows any drop allows one that the metric cannot see, too.
        floor = "" if self.value >= METRICS[self.metric].scale else facts.floor_text(compared)
        enough = None if floor else rows_to_settle(compared, rows, self.value)
        enough = numbers.two_digits_up(enough)
        if floor and verdict == "passed":
            verdict = "inconclusive"
        drops = None if bounds is None else (-bounds[1], -bounds[0])
        interval = "" if drops is None else f" {numbers.interval(drops, style.digits)}"
        message = (
            f"{style.label} {style.score(compared.pruned)} against {style.score(compared.dense)} "
            f"dense: a drop of {style.score(-compared.difference)}{interval}, at most "
            f"{self.value:.15g} allowed"
        )
        if floor:
            message += f"; {floor}"
        elif verdict == "inconclusive":
            message += settled_by(enough, f"test {style.counted} instead of {rows:,}", bounds)
        outcome = self.outcome(
            variant, verdict, message,
            measured=-compared.difference, limit=self.value, interval=drops, enough=enough,
        )  # fmt: skip
        return outcome, self._is_met(compared.difference) and not floor

    def _is_met(self, difference: float) -> bool:
        return -difference <= self.value + ROUNDING  # false for NaN


@dataclass(frozen=True)
class MinSpeedupRule(Rule):
    """Sentences per second over dense must be at least `ratio`, at one or every batch size.

    Speed-ups are ratios of models that were timed in turn in one run; other timings are not
    comparable, and there are no rules about them.
    """

    option = "min-speedup"
    needs_timing = True
    ratio: float
    batch_size: int | None = None

    @classmethod
    def parse(cls, value: str) -> Self:
        match = re.fullmatch(rf"\s*({NUMBER})\s*(?:@\s*([0-9]{{1,9}})\s*)?", value, re.ASCII)
        if match is None or float(match[1]) == 0 or (match[2] and int(match[2]) == 0):
            raise UsageError(
                f"--{cls.option} {value!r} is neither RATIO nor RATIO@BATCH with numbers above 0; "
                f"write for example --{cls.option} 1.1@16",
                id="min-speedup-malformed",
            )
        return cls(float(match[1]), int(match[2]) if match[2] else None)

    @property
    def text(self) -> str:
        where = "" if self.batch_size is None else f"@{self.batch_size}"
        return f"{self.ratio:.15g}{where}"

    @property
    def subject(self) -> object:
        return self.batch_size

    def check(self, report: Report, variant: Variant) -> tuple[Outcome, bool]:
        gained = self.gained(report, variant)
        held = {row.batch_size for row, *_ in gained}
        wanted = set(facts.batch_sizes(report)) if self.batch_size is None else {self.batch_size}
        if not wanted or not wanted <= held:
            raise self.not_measured(variant, "speed-ups at batch sizes", map(str, sorted(held)))
        gained = [one for one in gained if one[0].batch_size in wanted]
        verdicts = [judge(ratio, interval, self._is_met) for _, ratio, interval, _ in gained]
        worst = facts.worst_of(verdicts)
        shown = [one for one, verdict in zip(gained, verdicts, strict=True) if verdict == worst]
        measured = phrases.join([text for *_, text in shown])
        message = f"speed-up {measured}, at least {self.ratio:.15g} required"
        row, ratio, interval, _ = min(shown, key=lambda one: one[1])
        enough = None
        if worst == "inconclusive":
            if interval is not None and math.isfinite(ratio) and row.runs >= 1:
                low, high = interval
                width = ratio - low if ratio >= self.ratio else high - ratio
                enough = scaled_rows(row.runs, width, abs(ratio - self.ratio))
                enough = numbers.two_digits_up(enough)
            what = f"timed batches instead of {row.runs:,} (--bench-seconds)"
            message += settled_by(enough, what, interval)
        outcome = self.outcome(
            variant, worst, message,
            measured=ratio, limit=self.ratio, interval=interval, enough=enough,
        )  # fmt: skip
        return outcome, all(self._is_met(ratio) for _, ratio, *_ in gained)

    def gained(self, report: Report, variant: Variant) -> list[tuple[Timing, float, Bounds, str]]:
        """Timings, at most one per batch size: each with its speed-up, interval, and in words."""
        gained = []
        for row in facts.with_speedup(report, variant):
            text = f"{phrases.speedup(row)} at batch {row.batch_size}"
            gained.append((row, row.speedup or 0.0, row.speedup_interval, text))
        return gained

    def _is_met(self, ratio: float) -> bool:
        return ratio >= self.ratio - ROUNDING


@dataclass(frozen=True)
class MinFastestSpeedupRule(MinSpeedupRule):
    """The same for the fastest build of a model, over the fastest dense build of any engine.

    Builds count that keep the float32 model's quality, itself, and the one that is delivered.
    """

    option = "min-fastest-speedup"
    needs_engines = True

    def gained(self, report: Report, variant: Variant) -> list[tuple[Timing, float, Bounds, str]]:
        best: dict[int, tuple[Timing, float, Bounds, str]] = {}
        for build in facts.builds(report, variant):
            if build.name not in (build.family, variant.name) and not facts.keeps_quality(build):
                continue
            for row in facts.timings(report, build.name):
                size, ratio = row.batch_size, row.fastest_speedup
                interval = row.fastest_speedup_interval
                if ratio is not None and (size not in best or ratio > best[size][1]):
                    best[size] = row, ratio, interval, phrases.over_fastest(row)
        return [best[size] for size in sorted(best)]


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
        number = self.number(report, variant)
        within = number <= self.value + ROUNDING  # false for NaN
        message = f"{self.what} {number:.4g}{self.unit}, at most {self.text}{self.unit} allowed"
        verdict: Verdict = "passed" if within else "failed"
        outcome = self.outcome(variant, verdict, message, measured=number, limit=self.value)
        return outcome, within


class MaxSizeRule(LargestRule):
    """Megabytes (1,000,000 bytes) of the graphs with their weights, in the precision shipped."""

    option, unit, what = "max-size-mb", " MB", "ONNX size"

    def number(self, report: Report, variant: Variant) -> float:
        return variant.onnx_bytes / 1e6


class MaxMacsRule(LargestRule):
    """Multiply-adds as a share of the dense model's."""

    option, unit, what = "max-macs", " of dense", "multiply-adds"

    def number(self, report: Report, variant: Variant) -> float:
        return variant.macs_share


class MaxParametersRule(LargestRule):
    """Parameters as a share of the dense model's."""

    option, unit, what = "max-parameters", " of dense", "parameters"

    def number(self, report: Report, variant: Variant) -> float:
        dense = report.dense.parameters
        return variant.parameters / dense if dense > 0 else math.nan


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


def settled_by(enough: int | None, what: str, interval: object) -> str:
    """What an inconclusive rule is missing, as the end of a sentence."""
    if interval is None:
        return "; the report has no confidence interval of it"
    if enough is None:
        return "; no number would settle it, for what was measured is next to the limit"
    return f"; about {enough:,} {what} would settle it, if the measured value stayed"


RULE_KINDS: tuple[type[Rule], ...] = (
    MaxDropRule,
    MinSpeedupRule,
    MinFastestSpeedupRule,
    MaxSizeRule,
    MaxMacsRule,
    MaxParametersRule,
)
