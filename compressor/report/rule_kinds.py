"""The kinds of acceptance rules: how much quality a smaller model may lose, how much faster it
must be, how large it may be. `rules` reads and checks them.

What is measured on rows or by a clock is held against its 95 % confidence bounds, not against its
estimate: a rule is passed if the whole interval meets it, failed if none of it does, and
inconclusive where the interval contains the limit. Sizes and counts are exact.

A speed-up is the ratio of two models that were timed in turn in one run; other timings are not
comparable, and there are no rules about them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from compressor.errors import InputError
from compressor.evaluation import confidence_bounds, rows_to_settle, scaled_rows
from compressor.report import facts, numbers, sentences
from compressor.report.schema import Report
from compressor.results import Timing, Variant, Verdict


class Rule(ABC):
    """One condition on every variant of a report."""

    option: ClassVar[str]

    @property
    @abstractmethod
    def text(self) -> str:
        """The value of the option on the command line, for example `bleu=0.5`."""

    @property
    def name(self) -> str:
        """What reports call the rule, for example `max-metric-drop bleu=0.5`."""
        return f"{self.option} {self.text}"

    @property
    @abstractmethod
    def subject(self) -> object:
        """The number that the rule limits; two rules of one kind must not limit the same one."""

    @abstractmethod
    def check(self, report: Report, variant: Variant) -> Finding:
        """What `variant` shows of the rule.

        Raises:
            InputError: the report lacks the numbers that the rule needs.
        """


@dataclass(frozen=True)
class Finding:
    """What a model shows of one rule.

    Args:
        within: whether the measured number meets the rule, whatever its interval.
        more: fields of `Outcome`.
    """

    verdict: Verdict
    within: bool
    message: str
    more: dict[str, Any]


def judge(
    measured: float, interval: tuple[float, float] | None, within: Callable[[float], bool]
) -> Verdict:
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
class MaxDrop(Rule):
    """Dense minus pruned must not be above `value`, on the metric's own scale."""

    option = "max-metric-drop"
    metric: str
    value: float

    @property
    def text(self) -> str:
        return f"{self.metric}={self.value:.15g}"

    @property
    def subject(self) -> object:
        return self.metric

    def check(self, report: Report, variant: Variant) -> Finding:
        dense, pruned = _scores(report, variant, self)
        difference = pruned - dense
        bounds, rows, enough = self._bounds(report, variant, difference)
        within = -difference <= self.value + facts.ROUNDING  # false for NaN
        verdict = judge(difference, bounds, lambda end: -end <= self.value + facts.ROUNDING)
        style = facts.metric_style(self.metric)
        score, reference, lost = (
            numbers.fixed(number, style.digits) for number in (pruned, dense, -difference)
        )
        drops = None if bounds is None else (-bounds[1], -bounds[0])
        message = (
            f"{style.label} {score} against {reference} dense: a drop of {lost}"
            f"{_interval(drops, style.digits)}, at most {self.value:.15g} allowed"
        )
        if verdict == "inconclusive":
            message += "; " + _settled_by(enough, f"test rows instead of {rows:,}", bounds)
        found = {"measured": -difference, "interval": drops, "limit": self.value, "enough": enough}
        return Finding(verdict, within, message, found)

    def _bounds(
        self, report: Report, variant: Variant, difference: float
    ) -> tuple[tuple[float, float] | None, int, int | None]:
        """Bounds of the difference, on how many rows, and how many would settle the rule."""
        found = facts.comparison(variant, self.metric)
        rows = facts.test_rows(report, variant)
        bounds = None if found is None else confidence_bounds(found, rows)
        if found is None or bounds is None:
            return None, rows, None
        shift = difference - found.difference  # none, in a report of one run
        enough = rows_to_settle(found, rows, self.value + shift)
        return (bounds[0] + shift, bounds[1] + shift), rows, _two_digits(enough)


@dataclass(frozen=True)
class MinSpeedup(Rule):
    """Sentences per second over dense must be at least `ratio`, at one or every batch size."""

    option = "min-speedup"
    ratio: float
    batch_size: int | None = None

    @property
    def text(self) -> str:
        where = "" if self.batch_size is None else f"@{self.batch_size}"
        return f"{self.ratio:.15g}{where}"

    @property
    def subject(self) -> object:
        return self.batch_size

    def check(self, report: Report, variant: Variant) -> Finding:
        rows = _speedups(report, variant, self)
        verdicts = [judge(ratio, row.speedup_interval, self._is_met) for row, ratio in rows]
        worst: Verdict = worst_of(verdicts)
        shown = [pair for pair, verdict in zip(rows, verdicts, strict=True) if verdict == worst]
        measured = sentences.join(
            [f"{sentences.speedup(row)} at batch {row.batch_size}" for row, _ in shown]
        )
        message = f"speed-up {measured}, at least {self.ratio:.15g} required"
        row, ratio = min(shown, key=lambda pair: pair[1])
        enough = None
        if worst == "inconclusive":
            enough = self._runs_to_settle(row, ratio)
            what = f"timed batches instead of {row.runs:,} (--bench-seconds)"
            message += "; " + _settled_by(enough, what, row.speedup_interval)
        found = {
            "measured": ratio,
            "interval": row.speedup_interval,
            "limit": self.ratio,
            "enough": enough,
        }
        return Finding(worst, all(self._is_met(ratio) for _, ratio in rows), message, found)

    def _is_met(self, ratio: float) -> bool:
        return ratio >= self.ratio - facts.ROUNDING

    def _runs_to_settle(self, row: Timing, ratio: float) -> int | None:
        if row.speedup_interval is None or not math.isfinite(ratio) or row.runs < 1:
            return None
        low, high = row.speedup_interval
        width = ratio - low if ratio >= self.ratio else high - ratio
        return _two_digits(scaled_rows(row.runs, width, abs(ratio - self.ratio)))


@dataclass(frozen=True)
class Largest(Rule):
    """A number that is known exactly must not be above `value`."""

    value: float
    unit: ClassVar[str]
    what: ClassVar[str]

    @property
    def text(self) -> str:
        return f"{self.value:.15g}"

    @property
    def subject(self) -> object:
        return None

    @abstractmethod
    def number(self, report: Report, variant: Variant) -> float | None:
        """What the rule limits, on the scale of `value`; None where the report does not tell."""

    def check(self, report: Report, variant: Variant) -> Finding:
        found = self.number(report, variant)
        if found is None:
            raise InputError(
                f"the gate rule {self.name!r} cannot be checked for {variant.name}: the report "
                f"does not tell its {self.what}; leave the rule out, or give the report of a run "
                "of this version",
                id="rule-not-measured",
            )
        within = found <= self.value + facts.ROUNDING  # false for NaN
        message = (
            f"{self.what} {found:.4g}{self.unit}, at most {self.value:.15g}{self.unit} allowed"
        )
        more = {"measured": found, "limit": self.value}
        return Finding("passed" if within else "failed", within, message, more)


@dataclass(frozen=True)
class MaxSize(Largest):
    """Megabytes (1,000,000 bytes) of the graphs with their weights, in the precision shipped."""

    option = "max-size-mb"
    unit, what = " MB", "ONNX size"

    def number(self, report: Report, variant: Variant) -> float | None:
        return variant.onnx_bytes / 1e6


@dataclass(frozen=True)
class MaxMacs(Largest):
    """Multiply-adds as a share of the dense model's."""

    option = "max-macs"
    unit, what = " of dense", "multiply-adds"

    def number(self, report: Report, variant: Variant) -> float | None:
        return variant.macs_share


@dataclass(frozen=True)
class MaxParameters(Largest):
    """Parameters as a share of the dense model's."""

    option = "max-parameters"
    unit, what = " of dense", "parameters"

    def number(self, report: Report, variant: Variant) -> float | None:
        dense = report.dense.parameters
        return variant.parameters / dense if dense > 0 else None


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Failed if one is, else inconclusive if one is; passed of none."""
    order: tuple[Verdict, ...] = ("passed", "inconclusive", "failed")
    return max(verdicts, key=order.index, default="passed")


def _interval(bounds: tuple[float, float] | None, digits: int) -> str:
    return "" if bounds is None else f" {numbers.interval(bounds, digits)}"


def _two_digits(count: int | None) -> int | None:
    return None if count is None else numbers.two_digits_up(count)


def _settled_by(enough: int | None, what: str, interval: object) -> str:
    """What an inconclusive rule is missing, as part of a sentence."""
    if interval is None:
        return "the report has no confidence interval of it"
    if enough is None:
        return "no number would settle it, for what was measured is next to the limit"
    return f"about {enough:,} {what} would settle it, if the measured value stayed"


def _scores(report: Report, variant: Variant, rule: MaxDrop) -> tuple[float, float]:
    """Dense and pruned value of a metric."""
    dense = facts.value(report.dense, rule.metric)
    pruned = facts.value(variant, rule.metric)
    if dense is not None and pruned is not None:
        return dense, pruned
    found = facts.comparison(variant, rule.metric)
    if found is not None:
        return found.dense, found.pruned
    raise _not_held(
        rule, variant, "metrics", (m for m in facts.metrics(report) if _has(report, variant, m))
    )


def _has(report: Report, variant: Variant, metric: str) -> bool:
    both = (facts.value(report.dense, metric), facts.value(variant, metric))
    return None not in both or facts.comparison(variant, metric) is not None


def _speedups(report: Report, variant: Variant, rule: MinSpeedup) -> list[tuple[Timing, float]]:
    """The timings that a rule limits, with their speed-ups; none of them may be missing."""
    rows = [
        (row, row.speedup) for row in facts.timings(report, variant.name) if row.speedup is not None
    ]
    held = {row.batch_size for row, _ in rows}
    wanted = set(facts.batch_sizes(report)) if rule.batch_size is None else {rule.batch_size}
    if not wanted or not wanted <= held:
        sizes = (str(size) for size in sorted(held))
        raise _not_held(rule, variant, "speed-ups at batch sizes", sizes)
    return [(row, speedup) for row, speedup in rows if row.batch_size in wanted]


def _not_held(rule: Rule, variant: Variant, what: str, held: Iterable[str]) -> InputError:
    return InputError(
        f"the gate rule {rule.name!r} cannot be checked for {variant.name}: the report holds "
        f"{what} {', '.join(held) or 'none'}; change the rule or measure what it needs",
        id="rule-not-measured",
    )
