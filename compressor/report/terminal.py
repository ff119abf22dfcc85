"""The result in a few lines for the end of stdout, and as the one JSON object of `--json`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from compressor.model.sublayers import TOKEN_UNITS, Scores, Units, units_of
from compressor.report import facts, gains, numbers, sentences
from compressor.report.schema import Report
from compressor.report.table import columns, render_text
from compressor.report.tables import baseline, engines, throughput
from compressor.report.view import ReportView, SpeedRow, SpeedSection
from compressor.steps.results import Comparison, Throughput, Variant

WIDTH = 100
_NAME_WIDTH = 20


def run_text(view: ReportView, output: Path) -> str:
    """The output of `compress run`: the measurements, what they show, and what to do next.

    Args:
        view: The view of the run's report, made for the directory below.
        output: The directory that the report was written to, as the user named it.
    """
    return "\n\n".join([short_table(view), ending(view, output)])


def ending(view: ReportView, output: Path) -> str:
    """The last lines of a run: where the report is, and the one best next command."""
    text = f"Report: {output / 'report.html'}"
    if view.next_step is not None:
        advice = textwrap.wrap(f"Next: {view.next_step.advice}", WIDTH)
        text += "\n" + "\n".join([*advice, f"    {view.next_step.command}"])
    return text


def short_table(view: ReportView) -> str:
    """Plain text of about 100 columns: size and quality, speed by batch size, the verdict."""
    return "\n\n".join([*measured_tables(view), verdict(view)])


def measured_tables(view: ReportView) -> list[str]:
    """The tables of size and quality, and of speed by batch size."""
    return [_size_table(view), *_speed_tables(view)]


def verdict(view: ReportView) -> str:
    """The conclusion, warnings and the gate, then every rule that is not met."""
    lines = textwrap.wrap(numbers.printable(view.paragraph), WIDTH)
    for outcome in view.gate:
        if not outcome.met:
            line = sentences.outcome_line(outcome)
            lines += textwrap.wrap(line, WIDTH, subsequent_indent=" " * 9)
    return "\n".join(lines)


def _size_table(view: ReportView) -> str:
    metric, neurons = facts.primary_metric(view.report), facts.shows(view.report, "neurons")
    tokens = view.units.shows_tokens
    titles = ["heads", *(["neurons"] if neurons else []), *(["tokens"] if tokens else [])]
    titles += [*(["multiply-adds"] if neurons or tokens else []), "ONNX MB"]
    if metric is not None:
        titles.append(f"{facts.metric_style(metric).label} (difference)")
    title = "" if metric is None else facts.metric_style(metric).title
    rows = []
    for size in view.sizes:
        cells = [_shorten(size.build), size.heads.text]
        cells += [size.neurons.text] if neurons else []
        cells += [size.tokens.text] if tokens else []
        cells += [numbers.percent(size.macs_share, 1, 1)] if neurons or tokens else []
        # Other engines run the same graphs, or files of their own.
        cells.append(numbers.megabytes(size.onnx_bytes) if size.in_default_engine else "")
        if metric is not None:
            cells.append(_quality_cell(view, size.build, title))
        rows.append(cells)
    return render_text(columns("model", *titles), rows)


def _quality_cell(view: ReportView, build: str, title: str) -> str:
    """A score, and its difference from dense: `33.90 (-0.31 [-0.62, +0.01])`."""
    dense = view.report.dense.name
    for row in view.quality.rows:
        if (row.build, row.style.title) == (build, title):
            made = row.difference
            change = f" ({made.text})" if made is not None and made.against == dense else ""
            return f"{row.style.score(row.score)}{change}"
    return numbers.ABSENT


def _speed_tables(view: ReportView) -> Iterator[str]:
    """Tables of sentences per second, two batch sizes in each, which fit side by side."""
    sizes = sorted({speed.timing.batch_size for speed in view.speed.rows})
    cells: dict[tuple[str, int], str] = {}
    for speed in view.speed.rows:
        row = speed.timing
        gain = "" if row.speedup is None else f" ({sentences.speedup(row)})"
        cells[row.variant, row.batch_size] = f"{numbers.adaptive(row.sentences_per_second)}{gain}"
    for start in range(0, len(sizes), 2):
        part = sizes[start : start + 2]
        titles = columns("sentences/s (speed-up)", *(f"batch {size}" for size in part))
        rows = [
            [_shorten(size.build), *(cells.get((size.build, batch), "") for batch in part)]
            for size in view.sizes
        ]
        yield render_text(titles, rows)


def _shorten(name: str) -> str:
    """A name without its middle: its end tells the builds of one model apart."""
    name, half = numbers.printable(name), (_NAME_WIDTH - 3) // 2
    return name if len(name) <= _NAME_WIDTH else f"{name[:half]}...{name[-half:]}"


def gate_text(view: ReportView) -> str:
    """The output of `compress gate`: a line for each outcome, and the changes as a table."""
    lines = [sentences.outcome_line(outcome) for outcome in view.gate]
    if view.changes:
        table = baseline(view)
        lines += ["", render_text(table.columns, table.rows)]
    return "\n".join(lines)


def scores_text(scores: Scores) -> str:
    """Tables of scores: every head's, and of the neurons of a sublayer the quartiles.

    Those of tokens are of the tenths that each layer hands on, the most significant first.
    """
    by_units: dict[str, list[list[str]]] = {}
    for name, values in scores.values.items():
        shown = values
        if units_of(name) == "neurons":
            shown = tuple(np.quantile(values, (0, 0.25, 0.5, 0.75, 1)))
        row = [name, *(f"{value:.3g}" for value in shown)]
        by_units.setdefault(units_of(name), []).append(row)
    titles = {
        "neurons": columns("neurons", "lowest", "25%", "median", "75%", "highest"),
        "tokens": columns(
            "tokens by tenth", "1 (most significant)", *map(str, range(2, TOKEN_UNITS + 1))
        ),
    }
    tables = [
        render_text(titles.get(units, ()), by_units[units])
        for units in get_args(Units)
        if units in by_units
    ]
    return "\n\n".join(tables)


def bench_text(timed: Throughput) -> str:
    """The output of `compress bench`: the conditions, and the tables of a report about speed."""
    rows = tuple(
        SpeedRow(row, None if row.speedup is None else gains.gain(row), None) for row in timed.rows
    )
    several = any(row.fastest is not None for row in timed.rows)
    tables = [throughput(rows), engines(SpeedSection(rows, "", several, ()))]
    conditions = (
        f"{sentences.providers(timed)}, {timed.precision}, {timed.threads} threads, "
        f"lengths: {timed.lengths}"
    )
    return "\n\n".join([conditions, *(render_text(x.columns, x.rows) for x in tables if x.rows)])


# --- the JSON object


def summary(view: ReportView) -> dict[str, Any]:
    """The report for scripts; numbers that are not finite become None, which JSON can hold."""
    report = view.report
    return _finite(
        {
            "model": report.model,
            "task": report.task,
            "metric": facts.primary_metric(report),
            "dense": _model_summary(report, report.dense),
            "variants": [_model_summary(report, variant) for variant in report.variants],
            **gate_summary(report),
            "verdict": view.paragraph,
        }
    )


def gate_summary(report: Report) -> dict[str, Any]:
    """The outcomes of the rules, for scripts; numbers as in `summary`."""
    return _finite(
        {
            "gate": [dict(outcome) for outcome in report.gate],
            "gate_met": all(outcome.met for outcome in report.gate) if report.gate else None,
            "gate_verdict": facts.gate_verdict(report),
            "changes": [dict(change) for change in report.changes],
        }
    )


def _model_summary(report: Report, model: Variant) -> dict[str, Any]:
    fields = {
        *("name", "directory", "precision", "engine", "default", "macs_share", "parameters"),
        *("checkpoint_bytes", "onnx_bytes", "handed_on"),
    }
    rows = facts.test_rows(report, model)
    return {
        **model.model_dump(include=fields),
        "heads_kept": facts.kept(model, "heads"),
        "heads_total": facts.total(model, "heads"),
        "neurons_kept": facts.kept(model, "neurons"),
        "neurons_total": facts.total(model, "neurons"),
        "quality": dict(model.quality.metrics) if model.quality else {},
        "comparisons": _comparisons(model.comparisons, rows),
        "base": model.base or None,
        "base_comparisons": _comparisons(model.base_comparisons, rows),
        "throughput": [
            {
                **row.model_dump(),
                "interval": row.speedup_interval,
                "pays": None if row.speedup is None else gains.pays(row),
            }
            for row in gains.timings(report, model.name)
        ],
    }


def _comparisons(made: Sequence[Comparison], rows: int) -> dict[str, Any]:
    """Comparisons by metric, with the interval that pages show and rules are held against."""
    return {
        compared.metric: {
            **compared.model_dump(),
            "interval": facts.interval_of(compared, rows),
            "judgement": facts.JUDGMENT_WORDS[facts.judge(compared, rows)],
            "few_rows": facts.are_few(compared, rows),
        }
        for compared in made
    }


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    finite: dict[str, Any] = json.loads(json.dumps(data), parse_constant=lambda name: None)
    return finite
