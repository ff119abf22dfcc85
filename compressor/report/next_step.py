"""The step after a report: one piece of advice, and a command that does it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from compressor.evaluation import METRICS
from compressor.recovery import RECOVERIES
from compressor.report import baseline, facts
from compressor.report.formats import JSON
from compressor.report.gains import pays, timings, with_speedup
from compressor.report.rule import Rule
from compressor.report.rules import MaxDropRule, MaxMacsRule, MinSpeedupRule, check
from compressor.report.schema import Report
from compressor.report.view import NextStep
from compressor.steps.results import Outcome, Timing, Variant
from compressor.storage.manifest import RECIPE
from compressor.tasks import TASKS


def next_step(report: Report, directory: Path) -> NextStep | None:
    """Advise on the model that the report leads with; None without a pruned model.

    Args:
        report: The report.
        directory: The directory that holds it, as seen from where the command is typed.
    """
    variant = facts.headline(report)
    if variant is None:
        return None
    recipe = shlex.quote(str(directory / RECIPE))
    again = f"compress run -c {recipe} -o NEW"
    compared, rows = facts.main_comparison(report, variant), with_speedup(report, variant)
    if compared is None:
        advice = "Measure what it costs in quality, on rows with answers."
        return NextStep(advice, f"{again} --test FILE")
    if not rows:
        advice = "Measure how fast it is on the machine that will serve it."
        return NextStep(advice, f"{again} --bench")
    unmet = [x for x in report.gate if x.variant == variant.name and not x.met]
    if report.gate and not unmet:
        artifact = shlex.quote(str(directory / variant.directory))
        return NextStep("It meets the gate: use it.", f"compress predict {artifact} FILE")
    step = _improve(report, variant, rows, unmet, again)
    if step is not None:
        return step
    stored = shlex.quote(str(directory / JSON.file))
    rules = " ".join(f"--{rule.option} {rule.text}" for rule in rules_that_pass(report))
    if not rules:
        return None
    return NextStep(
        "Hold later runs to what this one reached; this gate passes on this report.",
        f"compress gate {stored} {rules}",
    )


def _improve(
    report: Report, variant: Variant, rows: Sequence[Timing], unmet: Sequence[Outcome], again: str
) -> NextStep | None:
    """The step where quality, speed or certainty are not what they should be; else None."""
    more, less = (
        f"{again} --macs {min(max(variant.macs_share + by, 0.1), 0.95):.2g}" for by in (-0.2, 0.1)
    )
    quality = {x.verdict for x in unmet if _is_about_quality(x)}
    other = {x.verdict for x in unmet if not _is_about_quality(x)}
    judgment = facts.judge_main(report, variant)
    if "failed" in quality or (not report.gate and judgment == "worse"):
        if any(name in variant.recovery and x.trains for name, x in RECOVERIES.items()):
            return NextStep("It loses quality, though it was trained: remove less.", less)
        advice = "It loses quality: train it on the dense model's predictions"
        if not TASKS[report.task].one_example_per_row:  # whose lines would be no rows
            return NextStep(f"{advice}.", f"{again} --recover reconstruct+distill")
        return NextStep(
            f"{advice}, on as much text of your kind as there is.",
            f"{again} --recover reconstruct+distill --distill-text FILE",
        )
    alone = facts.dense_alone(report, variant)
    if alone is not None and not _is_better(report, variant, alone):
        return NextStep(
            f"It is not shown to be faster than dense {alone.precision} alone, which loses no "
            "more: take that, or remove more.",
            f"compress export -m MODEL --precision {report.dense.precision},{alone.precision} "
            "--calibration FILE -o NEW",
        )
    if "failed" in other or not (report.gate or any(map(pays, rows))):
        return NextStep("It is not as fast or as small as it should be: remove more.", more)
    if quality or judgment == "unknown":
        return NextStep(
            "The test rows do not decide it: take more, or others.", f"{again} --test FILE"
        )
    if other:
        return NextStep(
            "The timings do not decide it: measure longer.", f"{again} --bench-seconds 10"
        )
    return None


def _is_about_quality(outcome: Outcome) -> bool:
    return outcome.rule.split()[0] in (MaxDropRule.option, baseline.RULE)


def _is_better(report: Report, variant: Variant, alone: Variant) -> bool:
    """Whether a variant is faster than a dense build at a batch size, or loses less."""
    pruned, dense = (facts.main_comparison(report, x) for x in (variant, alone))
    if pruned is None or dense is None or pruned.difference > dense.difference:
        return True
    rates = {row.batch_size: row.sentences_per_second for row in timings(report, alone.name)}
    return any(
        row.sentences_per_second > rates.get(row.batch_size, 0)
        for row in timings(report, variant.name)
    )


def rules_that_pass(report: Report) -> list[Rule]:
    """Gate rules on quality and speed that this report passes, with the tightest round limits.

    They are made of the confidence bounds of all delivered variants. Where neither can be judged,
    there is one about the multiply-adds, which are exact; none where the gate cannot tell which
    build of a model is delivered.
    """
    if any(len(_defaults(report, model)) != 1 for model in facts.pruned(report)):
        return []
    rules = [*_drop_rule(report), *_speed_rule(report)]
    passed = [rule for rule in rules if _is_passed(report, rule)]
    if passed:
        return passed
    share = max(variant.macs_share for variant in facts.delivered(report))
    return [MaxMacsRule(math.ceil(100 * share) / 100)]


def _defaults(report: Report, model: Variant) -> list[Variant]:
    return [build for build in facts.builds(report, model) if build.default]


def _is_passed(report: Report, rule: Rule) -> bool:
    return all(outcome.verdict == "passed" for outcome in check(report, [rule]))


def _drop_rule(report: Report) -> list[Rule]:
    """The smallest round drop of the main metric that no variant is shown to exceed."""
    metric = facts.primary_metric(report)
    bounds = []
    for variant in facts.delivered(report):
        compared = facts.comparison(variant, metric)
        bounds.append(compared and facts.bounds(report, variant, compared))
    if metric is None or metric not in METRICS or not all(bounds):
        return []
    digits = max(facts.metric_style(metric).digits - 1, 0)
    largest = max(0.0, *(-ends[0] for ends in bounds if ends))
    return [MaxDropRule(metric, round(math.ceil(largest * 10**digits) / 10**digits, digits))]


def _speed_rule(report: Report) -> list[Rule]:
    """The largest round speed-up, at the largest batch size, that every variant is shown to have.

    Round is one decimal, and two below 1.
    """
    variants = facts.delivered(report)
    timed = [{row.batch_size: row for row in with_speedup(report, x)} for x in variants]
    common = set.intersection(*map(set, timed)) if timed else set()
    if not common:
        return []
    lows = [(rows[max(common)].speedup_interval or (0.0,))[0] for rows in timed]
    if not all(math.isfinite(low) and low >= 0.01 for low in lows):
        return []
    digits = 1 if min(lows) >= 1 else 2
    ratio = round(math.floor(min(lows) * 10**digits) / 10**digits, digits)
    return [MinSpeedupRule(ratio, max(common))]
