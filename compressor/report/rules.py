"""The acceptance rules of `compress gate`, from options to outcomes.

A rule that cannot be checked is an error, never a pass; `rule_kinds` has what each asks for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from compressor.errors import InputError, UsageError, did_you_mean
from compressor.report import facts
from compressor.report.rule_kinds import (
    Finding,
    MaxDrop,
    MaxMacs,
    MaxParameters,
    MaxSize,
    MinSpeedup,
    Rule,
)
from compressor.report.schema import Report
from compressor.results import Inconclusive, Outcome, Variant
from compressor.tasks import Task

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,15})?|\.[0-9]{1,15}"
_MAX_DROP = re.compile(rf"\s*([A-Za-z0-9_]+)\s*=\s*({_NUMBER})\s*", re.ASCII)
_MIN_SPEEDUP = re.compile(rf"\s*({_NUMBER})\s*(?:@\s*([0-9]{{1,9}})\s*)?", re.ASCII)


def parse_rules(
    max_metric_drop: Sequence[str] = (),
    min_speedup: Sequence[str] = (),
    *,
    max_size_mb: float | None = None,
    max_macs: float | None = None,
    max_parameters: float | None = None,
) -> list[Rule]:
    """Rules from the values of the options of the same names.

    Raises:
        UsageError: a value of the wrong form, an unknown metric, or the same rule twice.
    """
    rules: list[Rule] = [
        *map(_parse_max_drop, max_metric_drop),
        *map(_parse_min_speedup, min_speedup),
    ]
    exact = ((MaxSize, max_size_mb), (MaxMacs, max_macs), (MaxParameters, max_parameters))
    rules += [kind(value) for kind, value in exact if value is not None]
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
                f"--max-metric-drop {rule.text}: {rule.metric} is not a {task.name} metric; use "
                f"{' or '.join(task.metrics)}",
                id="metric-of-another-task",
            )


def check(
    report: Report, rules: Sequence[Rule], inconclusive: Inconclusive = "fail"
) -> list[Outcome]:
    """Check every rule on every variant, in the precision that its artifact runs by default.

    Args:
        inconclusive: what a rule counts as whose limit lies in the interval: failed, passed, or
            as the measured number says.

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
    return [
        _outcome(rule, variant, rule.check(report, variant), inconclusive)
        for variant in facts.delivered(report)
        for rule in rules
    ]


def _outcome(rule: Rule, variant: Variant, found: Finding, inconclusive: Inconclusive) -> Outcome:
    met = found.verdict == "passed"
    if found.verdict == "inconclusive":
        met = inconclusive == "pass" or (inconclusive == "measured" and found.within)
    return Outcome(
        rule=rule.name,
        variant=variant.name,
        met=met,
        message=found.message,
        verdict=found.verdict,
        **found.more,
    )


def exit_status(outcomes: Sequence[Outcome]) -> int:
    """0 if every rule is met, else 1."""
    return 0 if all(outcome.met for outcome in outcomes) else 1


def _parse_max_drop(text: str) -> MaxDrop:
    found = _MAX_DROP.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--max-metric-drop {text!r} is not METRIC=VALUE with a value of at least 0; "
            "write for example --max-metric-drop bleu=0.5",
            id="max-drop-malformed",
        )
    metric = found[1].lower()
    if metric not in facts.METRICS:
        raise UsageError(
            f"--max-metric-drop {text!r}: there is no metric {metric!r}; choose from "
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
