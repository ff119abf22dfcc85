"""The report's tables, from its numbers to cells of text; every format shows these.

A cell says nothing that another table says.
"""

from __future__ import annotations

from collections.abc import Iterator

from compressor.report import facts, gate_text, numbers, phrases, searches
from compressor.report.origin_tables import environment, origin, signatures
from compressor.report.schema import Change, Report
from compressor.report.speed_tables import engines, shapes, throughput
from compressor.report.table import Column, ReportTable, columns
from compressor.report.unit_tables import size, units
from compressor.results import Comparison, Variant


def tables(report: Report) -> dict[str, ReportTable]:
    """All tables that have rows, by key, in their order on a page."""
    made = (
        gate(report),
        baseline(report),
        quality(report),
        throughput(report),
        engines(report),
        size(report),
        *searches.describe(report).tables,
        units(report),
        checks(report),
        origin(report),
        shapes(report),
        signatures(report),
        environment(report),
    )
    return {table.key: table for table in made if table.rows}


def quality(report: Report) -> ReportTable:
    """Every metric of every model with its difference from dense."""
    metrics = facts.metrics(report)
    rows = [
        row
        for metric in metrics
        for model in facts.models(report)
        for row in _quality_rows(report, model, metric)
    ]
    counted = facts.metric_style(metrics[0]).counted if metrics else "rows"
    measured = report.dense.quality
    of = f", means over {measured.rows:,} {counted}" if measured and counted != "rows" else ""
    return ReportTable(
        key="quality",
        caption=f"Quality on the test rows{of}. The interval is the 95% interval of the difference "
        "(pruned minus dense) by paired bootstrap; p is two-sided, for accuracy by McNemar's exact "
        "test. A difference is significant if p is below 0.05 and the interval excludes 0.",
        columns=(
            *columns("Model, Metric", "Score"),
            *columns("Against", "Difference", "95% interval", "p"),
            Column("Result", numeric=False),
        ),
        rows=tuple(rows),
        title="Quality",
        notes=tuple(_defaults(report)),
    )


def _defaults(report: Report) -> Iterator[str]:
    """The default precision of the artifacts that come in several."""
    chosen: dict[str, list[str]] = {}
    for variant in facts.pruned(report):
        if len(facts.precisions(report, variant)) > 1:
            precision = facts.default_build(report, variant).precision
            chosen.setdefault(precision, []).append(variant.name)
    for precision, names in chosen.items():
        run = "runs" if len(names) == 1 else "run"
        yield f"Unless a precision is named, {phrases.join(names)} {run} in {precision}."


def _quality_rows(report: Report, model: Variant, metric: str) -> Iterator[tuple[str, ...]]:
    """A row against dense, and one against the float32 model for another precision of it."""
    style = facts.metric_style(metric)
    compared = facts.comparison(model, metric)
    score = facts.value(model, metric)
    if score is None and compared is not None:
        score = compared.pruned
    start = (model.name, style.title, style.score(score))
    if model is report.dense:
        yield (*start, "", "", "", "", "reference")
    elif compared is None:
        missing = "not measured" if score is None else "not compared"
        yield (*start, "", *[numbers.ABSENT] * 3, missing)
    else:
        yield (*start, report.dense.name, *_difference(compared))
    for compared in model.base_comparisons:
        if compared.metric == metric:
            yield (*start, model.base, *_difference(compared))


def _difference(compared: Comparison) -> tuple[str, ...]:
    style = facts.metric_style(compared.metric)
    return (
        style.difference(compared.difference),
        style.interval(compared.interval),
        numbers.p_value(compared.p_value),
        facts.JUDGMENT_WORDS[facts.judge(compared)],
    )


def checks(report: Report) -> ReportTable:
    """Verification of every model."""
    return ReportTable(
        key="checks",
        caption="Verification: the largest deviation seen and the tolerance it had to meet.",
        columns=(
            *columns("Model, Check", "Largest difference", "Tolerance"),
            *columns("Result, Detail"),
        ),
        rows=tuple(
            (
                model.name,
                check.name,
                f"{check.largest_difference:.2e}",
                f"{check.tolerance:.1e}",
                "within" if check.is_met else "EXCEEDED",
                check.detail,
            )
            for model in facts.models(report)
            for check in model.checks
        ),
        title="Verification",
    )


def gate(report: Report) -> ReportTable:
    """Gate rules and whether they are met."""
    return ReportTable(
        key="gate",
        caption="Gate: every rule for every variant, by 95% confidence bounds.",
        columns=columns("Model, Rule, Result, Measured"),
        rows=tuple(
            (outcome.variant, outcome.rule, gate_text.result(outcome), outcome.message)
            for outcome in report.gate
        ),
        title="Gate",
    )


def baseline(report: Report) -> ReportTable:
    """What changed since an earlier run."""
    return ReportTable(
        key="baseline",
        caption="Compared with the baseline: what each run measured against its own dense model. "
        "Intervals are of the change, of speed-ups of the ratio.",
        columns=(*columns("Model, What", "Baseline", "Now", "95% interval"), *columns("Result")),
        rows=tuple(map(_change_row, report.changes)),
        title="Compared with the baseline",
    )


def _change_row(change: Change) -> tuple[str, ...]:
    both = (change.before, change.after)
    values = (numbers.fixed(value, 0 if abs(value) >= 1e4 else 3) for value in both)
    bounds = "" if change.interval is None else numbers.interval(change.interval, 3)
    note = f" ({change.note})" if change.note else ""
    return (change.variant, change.what, *values, bounds, gate_text.change_result(change) + note)
