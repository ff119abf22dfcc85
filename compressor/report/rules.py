"""The acceptance rules of `compress gate`: quality, speed and size of smaller models.

What is measured is held against its 95 % confidence bounds; sizes and counts are exact. A rule that
cannot be checked is an error, never a pass.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from typing_extensions import override

from compressor.errors import InputError, UsageError
from compressor.evaluation import METRICS, metrics_of, rows_to_settle, scaled_rows
from compressor.report import facts, gains, numbers
from compressor.report.rule import NUMBER, Inconclusive, Rule, decided_by, judge, match_value
from compressor.report.schema import Report
from compressor.steps.results import ROUNDING, Interval, Outcome, Timing, Variant
from compressor.tasks import Rows


@dataclass(frozen=True)
class MaxDropRule(Rule):
    """Dense minus pruned must not be above `value`, on the metric's own scale."""

    option = "max-metric-drop"
    needs_test_rows = True
    metric: str
    value: float

    @override
    @classmethod
    def parse(cls, value: str) -> Self:
        pattern = rf"\s*([A-Za-z0-9_@]+)\s*=\s*({NUMBER})\s*"
        match = match_value(pattern, value, cls.option, "METRIC=VALUE, for example bleu=0.5")
        return cls(METRICS[match[1].lower()].name, float(match[2]))

    @override
    @property
    def text(self) -> str:
        return f"{self.metric}={self.value:.15g}"

    @override
    @property
    def subject(self) -> object:
        return self.metric

    @override
    def require_rows(self, rows: Rows) -> None:
        if self.metric not in metrics_of(rows):
            raise UsageError(
                f"--{self.name}: {self.metric} is not measured on {', '.join(rows.files)}; use "
                f"{' or '.join(metrics_of(rows))}",
                id="metric-of-another-task",
            )

    @override
    def check(self, report: Report, variant: Variant) -> Outcome:
        compared = facts.comparison(variant, self.metric)
        if compared is None:
            raise self.not_measured(variant, "metrics", (x.metric for x in variant.comparisons))
        rows, style = facts.test_rows(report, variant), facts.metric_style(self.metric)
        bounds = facts.bounds(report, variant, compared)
        drop, drops = -compared.difference, bounds and (-bounds[1], -bounds[0])
        verdict = judge(drop, drops, self._allows)
        shown = "" if drops is None else f" {numbers.interval(drops, style.digits)}"
        message = (
            f"{style.label} {style.score(compared.pruned)} against {style.score(compared.dense)} "
            f"dense: a drop of {style.score(drop)}{shown}, at most {self.value:.15g} allowed"
        )
        enough = None
        # A rule that allows any drop allows one that the metric cannot see, too.
        floor = "" if self.value >= METRICS[self.metric].scale else facts.floor_text(compared)
        if floor:
            verdict = "inconclusive" if verdict == "passed" else verdict
            message += f"; {floor}"
        elif needed := rows_to_settle(compared, rows, self.value):
            enough = numbers.ceil_to_two_digits(needed)
        if verdict == "inconclusive" and not floor:
            counted = f"test {style.counted}"
            message += decided_by(enough, counted, f"instead of {rows:,}", "drop", drops)
        return Outcome(
            rule=self.name,
            variant=variant.name,
            met=self._allows(drop) and not floor,
            message=message,
            verdict=verdict,
            measured=drop,
            interval=drops,
            limit=self.value,
            enough=enough,
        )

    def _allows(self, drop: float) -> bool:
        return drop <= self.value + ROUNDING  # false for NaN


@dataclass(frozen=True)
class MinSpeedupRule(Rule):
    """Sentences per second over dense must be at least `ratio`, at one or every batch size."""

    option = "min-speedup"
    needs_timing = True
    ratio: float
    batch_size: int | None = None

    @override
    @classmethod
    def parse(cls, value: str) -> Self:
        pattern = rf"\s*(?=[^@]*[1-9])({NUMBER})\s*(?:@\s*([0-9]{{1,9}})\s*)?"
        match = match_value(pattern, value, cls.option, "RATIO or RATIO@BATCH, for example 1.1@16")
        return cls(float(match[1]), int(match[2]) if match[2] else None)

    @override
    @property
    def text(self) -> str:
        where = "" if self.batch_size is None else f"@{self.batch_size}"
        return f"{self.ratio:.15g}{where}"

    @override
    @property
    def subject(self) -> object:
        return self.batch_size

    @override
    def check(self, report: Report, variant: Variant) -> Outcome:
        timed = {row.batch_size: row for row in self.timed(report, variant)}
        wanted = gains.batch_sizes(report) if self.batch_size is None else [self.batch_size]
        if not wanted or not timed.keys() >= set(wanted):
            raise self.not_measured(variant, "speed-ups at batch sizes", map(str, sorted(timed)))
        judged = []
        for row in (timed[size] for size in wanted):
            ratio, interval = self.gain(row)
            judged.append((judge(ratio, interval, self._allows), ratio, interval, row))
        verdict = facts.worst_of(one for one, *_ in judged)
        shown = [one for one in judged if one[0] == verdict]
        measured = numbers.join([self.words(row) for *_, row in shown])
        message = f"speed-up {measured}, at least {self.ratio:.15g} required"
        _, ratio, interval, row = min(shown, key=lambda one: one[1])
        enough = None
        if verdict == "inconclusive":
            enough = self._runs_needed(row)
            instead = f"instead of {row.runs:,} (--bench-seconds)"
            message += decided_by(enough, "timed batches", instead, "speed-up", interval)
        return Outcome(
            rule=self.name,
            variant=variant.name,
            met=all(self._allows(x) for _, x, *_ in judged),
            message=message,
            verdict=verdict,
            measured=ratio,
            interval=interval,
            limit=self.ratio,
            enough=enough,
        )

    def _runs_needed(self, row: Timing) -> int | None:
        """About how many timed batches would end in a verdict; None if no number would."""
        ratio, interval = self.gain(row)
        if interval is None or not row.runs:
            return None
        width = ratio - interval[0] if ratio >= self.ratio else interval[1] - ratio
        needed = scaled_rows(row.runs, width, abs(ratio - self.ratio))
        return None if needed is None else numbers.ceil_to_two_digits(needed)

    def timed(self, report: Report, variant: Variant) -> list[Timing]:
        """Timings with the speed-up that the rule is about, at most one for each batch size."""
        return gains.with_speedup(report, variant)

    def gain(self, row: Timing) -> tuple[float, Interval | None]:
        """The speed-up that the rule is about, with its 95 % interval."""
        return row.speedup or 0.0, row.speedup_interval

    def words(self, row: Timing) -> str:
        """The speed-up and where it was measured, for messages."""
        return f"{numbers.ratio(*self.gain(row))} at batch {row.batch_size}"

    def _allows(self, ratio: float) -> bool:
        return ratio >= self.ratio - ROUNDING  # false for NaN


@dataclass(frozen=True)
class MinFastestSpeedupRule(MinSpeedupRule):
    """The same for the fastest build of a model, over the fastest dense build of any engine.

    Builds count that keep the float32 model's quality, itself, and the one that is delivered.
    """

    option = "min-fastest-speedup"
    needs_engines = True

    @override
    def timed(self, report: Report, variant: Variant) -> list[Timing]:
        return gains.fastest(report, facts.sound_builds(report, variant))

    @override
    def gain(self, row: Timing) -> tuple[float, Interval | None]:
        return row.fastest_speedup or 0.0, row.fastest_speedup_interval

    @override
    def words(self, row: Timing) -> str:
        return f"{super().words(row)} ({row.variant} over {row.fastest})"


@dataclass(frozen=True)
class LargestRule(Rule):
    """A number that is known exactly must not be above `value`."""

    value: float
    unit: ClassVar[str]
    what: ClassVar[str]

    @override
    @classmethod
    def parse(cls, value: str) -> Self:
        return cls(float(value))

    @override
    @property
    def text(self) -> str:
        return f"{self.value:.15g}"

    @abstractmethod
    def number(self, report: Report, variant: Variant) -> float:
        """The number that the rule limits, on the scale of `value`."""

    @override
    def check(self, report: Report, variant: Variant) -> Outcome:
        number = self.number(report, variant)
        within = number <= self.value + ROUNDING  # false for NaN
        return Outcome(
            rule=self.name,
            variant=variant.name,
            met=within,
            message=f"{self.what} {number:.4g}{self.unit}, at most {self.text}{self.unit} allowed",
            verdict="passed" if within else "failed",
            measured=number,
            limit=self.value,
        )


class MaxSizeRule(LargestRule):
    """Megabytes (1,000,000 bytes) of the graphs with their weights, in the precision shipped."""

    option = "max-size-mb"
    unit = " MB"
    what = "ONNX size"

    @override
    def number(self, report: Report, variant: Variant) -> float:
        return variant.onnx_bytes / 1e6


class MaxMacsRule(LargestRule):
    """Multiply-adds as a share of the dense model's."""

    option = "max-macs"
    unit = " of dense"
    what = "multiply-adds"

    @override
    def number(self, report: Report, variant: Variant) -> float:
        return variant.macs_share


class MaxParametersRule(LargestRule):
    """Parameters as a share of the dense model's."""

    option = "max-parameters"
    unit = " of dense"
    what = "parameters"

    @override
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


def parse_rules(options: Mapping[str, object]) -> list[Rule]:
    """Make the rules that options ask for.

    Args:
        options: Values by `Rule.field`, a list if the option can be repeated; others are ignored.

    Returns:
        The rules, in the order of `RULE_KINDS`.

    Raises:
        UsageError: a value of the wrong form, an unknown metric, or the same rule twice.
    """
    rules: list[Rule] = []
    for kind in RULE_KINDS:
        value = options.get(kind.field())
        values = value if isinstance(value, list | tuple) else [] if value is None else [value]
        rules += map(kind.parse, values)
    seen: dict[tuple[str, object], Rule] = {}
    for rule in rules:
        first = seen.setdefault((rule.option, rule.subject), rule)
        if first is not rule:
            raise UsageError(
                f"the gate rules {first.name!r} and {rule.name!r} set two limits for the same "
                "number; keep one of them",
                id="rule-twice",
            )
    return rules


def check(
    report: Report, rules: Sequence[Rule], inconclusive: Inconclusive = "fail"
) -> list[Outcome]:
    """Check every rule on every variant, in the precision that its artifact runs by default.

    Args:
        report: The results of a run.
        rules: The rules to check.
        inconclusive: What an inconclusive outcome counts as: `fail`, `pass`, or `measured`, as the
            measured number alone says.

    Returns:
        An outcome for each variant and rule, whose `met` says whether it counts as met.

    Raises:
        InputError: there is no variant, a model has no default precision or several, or the report
            lacks the numbers that a rule needs.
    """
    if not rules:
        return []
    if not facts.pruned(report):
        raise InputError(
            "the gate has nothing to check: the report holds no pruned variant; give the report of "
            "a run that pruned",
            id="report-without-variants",
        )
    for model in facts.pruned(report):
        # Without this check no rule would be held against it, and the gate would pass.
        count = sum(build.default for build in facts.builds(report, model))
        if count != 1:
            raise InputError(
                f"the gate cannot tell which precision of {model.name} is shipped: {count} of them "
                "are marked as the default; give the report of a run",
                id="report-without-default",
            )
    outcomes = []
    for variant in facts.delivered(report):
        for rule in rules:
            outcome = rule.check(report, variant)
            met = outcome.verdict == "passed"
            if outcome.verdict == "inconclusive":
                met = inconclusive == "pass" or (inconclusive == "measured" and outcome.met)
            outcomes.append(outcome.model_copy(update={"met": met}))
    return outcomes


def gated(report: Report, gate: Sequence[Rule], inconclusive: Inconclusive) -> Report:
    """The report with the outcomes of a gate's rules; arguments and errors are those of `check`."""
    return report.model_copy(update={"gate": check(report, gate, inconclusive)})


def exit_status(outcomes: Sequence[Outcome]) -> int:
    """0 if every rule is met, else 1."""
    return 0 if all(outcome.met for outcome in outcomes) else 1
