"""The acceptance rules of `compress gate`: how much quality a smaller model may lose, how much
faster it must be. A rule that cannot be checked is an error, never a pass.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from compressor.errors import InputError, UsageError, did_you_mean
from compressor.report import facts, numbers, sentences
from compressor.report.schema import Report
from compressor.results import Outcome, Timing, Variant
from compressor.tasks import Task

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,15})?|\.[0-9]{1,15}"
_MAX_DROP = re.compile(rf"\s*([A-Za-z0-9_]+)\s*=\s*({_NUMBER})\s*", re.ASCII)
_MIN_SPEEDUP = re.compile(rf"\s*({_NUMBER})\s*(?:@\s*([0-9]{{1,9}})\s*)?", re.ASCII)


class Rule(ABC):
    """One condition on every variant of a report."""

    option: ClassVar[str]

    @property
    @abstractmethod
    def text(self) -> str:
        """The value of the option on the command line, for example `bleu=0.5`."""

    @property
    def name(self) -> str:
        """What reports call the rule, for example `max-drop bleu=0.5`."""
        return f"{self.option} {self.text}"

    @property
    @abstractmethod
    def subject(self) -> object:
        """The number that the rule limits; two rules of one kind must not limit the same one."""

    @abstractmethod
    def check(self, report: Report, variant: Variant) -> Outcome:
        """Whether `variant` meets the rule.

        Raises:
            InputError: the report lacks the numbers that the rule needs.
        """


@dataclass(frozen=True)
class MaxDrop(Rule):
    """Dense minus pruned must not be above `value`, on the metric's own scale."""

    option = "max-drop"
    metric: str
    value: float

    @property
    def text(self) -> str:
        return f"{self.metric}={self.value:.15g}"

    @property
    def subject(self) -> object:
        return self.metric

    def check(self, report: Report, variant: Variant) -> Outcome:
        dense, pruned = _scores(report, variant, self)
        drop = dense - pruned
        style = facts.metric_style(self.metric)
        score, reference, lost = (
            numbers.fixed(number, style.digits) for number in (pruned, dense, drop)
        )
        return Outcome(
            rule=self.name,
            variant=variant.name,
            met=drop <= self.value + facts.ROUNDING,  # false for NaN
            message=f"{style.label} {score} against {reference} dense: a drop of {lost}, "
            f"at most {self.value:.15g} allowed",
        )


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

    def check(self, report: Report, variant: Variant) -> Outcome:
        rows = _speedups(report, variant, self)
        failed = [row for row, speedup in rows if not speedup >= self.ratio - facts.ROUNDING]
        shown = failed or [row for row, _ in rows]
        measured = sentences.join(
            [f"{sentences.speedup(row)} at batch {row.batch_size}" for row in shown]
        )
        return Outcome(
            rule=self.name,
            variant=variant.name,
            met=not failed,
            message=f"speed-up {measured}, at least {self.ratio:.15g} required",
        )


def parse_rules(max_drop: Sequence[str], min_speedup: Sequence[str]) -> list[Rule]:
    """Rules from the values of `--max-drop` and `--min-speedup`.

    Raises:
        UsageError: a value of the wrong form, an unknown metric, or the same rule twice.
    """
    rules: list[Rule] = [*map(_parse_max_drop, max_drop), *map(_parse_min_speedup, min_speedup)]
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


def require_metrics(rules: Sequence[Rule], task: Task) -> None:
    """Raise `UsageError` for rules about metrics of another task."""
    for rule in rules:
        if isinstance(rule, MaxDrop) and rule.metric not in task.metrics:
            raise UsageError(
                f"--max-drop {rule.text}: {rule.metric} is not a {task.name} metric; use "
                f"{' or '.join(task.metrics)}",
                id="metric-of-another-task",
            )


def check(report: Report, rules: Sequence[Rule]) -> list[Outcome]:
    """Check every rule on every variant, in the precision that its artifact runs by default.

    Raises:
        InputError: there is no variant, a model has no default precision or several, or the report
            lacks the numbers that a rule needs.
    """
    if rules and not facts.pruned(report):
        raise InputError(
            "the gate has nothing to check: the report holds no pruned variant; give the report of "
            "a run that pruned",
            id="report-without-variants",
        )
    for model in facts.pruned(report) if rules else ():
        count = sum(build.default for build in facts.builds(report, model))
        if count != 1:
            raise InputError(
                f"the gate cannot tell which precision of {model.name} is shipped: {count} of them "
                "are marked as the default; give the report of a run",
                id="report-without-default",
            )
    return [rule.check(report, variant) for variant in facts.delivered(report) for rule in rules]


def exit_status(outcomes: Sequence[Outcome]) -> int:
    """0 if every rule is met, else 1."""
    return 0 if all(outcome.met for outcome in outcomes) else 1


def _parse_max_drop(text: str) -> MaxDrop:
    found = _MAX_DROP.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--max-drop {text!r} is not METRIC=VALUE with a value of at least 0; "
            "write for example --max-drop bleu=0.5",
            id="max-drop-malformed",
        )
    metric = found[1].lower()
    if metric not in facts.METRICS:
        raise UsageError(
            f"--max-drop {text!r}: there is no metric {metric!r}; choose from "
            f"{', '.join(facts.METRICS)}{did_you_mean(metric, facts.METRICS)}",
            id="metric-unknown",
        )
    return MaxDrop(metric, float(found[2]))


def _parse_min_speedup(text: str) -> MinSpeedup:
    found = _MIN_SPEEDUP.fullmatch(text)
    if found is None or float(found[1]) == 0 or (found[2] and int(found[2]) == 0):
        raise UsageError(
            f"--min-speedup {text!r} is neither RATIO nor RATIO@BATCH with numbers above 0; "
            "write for example --min-speedup 1.1@16",
            id="min-speedup-malformed",
        )
    return MinSpeedup(float(found[1]), int(found[2]) if found[2] else None)


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
