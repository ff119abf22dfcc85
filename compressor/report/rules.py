"""The acceptance rules of `compress gate`, from options to outcomes.

A rule that cannot be checked is an error, never a pass; `rule_kinds` has the classes of rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compressor.errors import InputError, UsageError
from compressor.report import facts
from compressor.report.rule_kinds import RULE_KINDS, Rule
from compressor.report.schema import Report
from compressor.results import Inconclusive, Outcome


def parse_rules(options: Mapping[str, object]) -> list[Rule]:
    """The rules among options, by the names of `Rule.field`; a list if one can be repeated.

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

    A rule whose limit lies in the interval counts as `inconclusive` says: failed, passed, or as
    the measured number alone decides.

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
            outcome, within = rule.check(report, variant)
            if outcome.verdict == "inconclusive":
                met = inconclusive == "pass" or (inconclusive == "measured" and within)
                outcome = outcome.model_copy(update={"met": met})
            outcomes.append(outcome)
    return outcomes


def exit_status(outcomes: Sequence[Outcome]) -> int:
    """0 if every rule is met, else 1."""
    return 0 if all(outcome.met for outcome in outcomes) else 1
