"""The kinds of acceptance rules: how much quality a smaller model may lose, how much faster it
must be, how large it may be. A kind is one class; `RULE_KINDS` lists them, `rules` checks them.

What is measured on rows or by a clock is held against its 95 % confidence bounds, not against its
estimate: a rule is passed if the whole interval meets it, failed if none of it does, and
inconclusive if the interval contains the limit. Sizes and counts are exact.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from compressor.errors import UsageError, did_you_mean
from compressor.evaluation import METRICS, metrics_of, rows_to_settle
from compressor.report import facts, numbers
from compressor.report.rule import NUMBER, Rule, judge, settled_by
from compressor.report.schema import Report
from compressor.report.speedup_rules import MinFastestSpeedupRule, MinSpeedupRule
from compressor.results import ROUNDING, Outcome, Variant, Verdict
from compressor.tasks import Rows, Task


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
        enough = (
            None if floor else numbers.two_digits_up(rows_to_settle(compared, rows, self.value))
        )
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

    option = "max-size-mb"
    unit, what = " MB", "ONNX size"

    def number(self, report: Report, variant: Variant) -> float:
        return variant.onnx_bytes / 1e6


class MaxMacsRule(LargestRule):
    """Multiply-adds as a share of the dense model's."""

    option = "max-macs"
    unit, what = " of dense", "multiply-adds"

    def number(self, report: Report, variant: Variant) -> float:
        return variant.macs_share


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
    MinFastestSpeedupRule,
    MaxSizeRule,
    MaxMacsRule,
    MaxParametersRule,
)
