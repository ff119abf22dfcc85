"""The result in a few lines for the end of stdout, and as the one JSON object of `--json`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from compressor.report import facts, numbers, phrases, sentences
from compressor.report.schema import Report
from compressor.report.table import columns, render_text
from compressor.report.tables import baseline, engine_table, timing_table
from compressor.results import Comparison, Throughput, Variant

WIDTH = 100
_NAME_WIDTH = 20


def short_table(report: Report) -> str:
    """Plain text of about 100 columns: size and quality, speed by batch size, the verdict."""
    blocks = [_size_table(report), *_speed_tables(report)]
    verdict = textwrap.wrap(numbers.printable(sentences.verdict(report)), WIDTH)
    for outcome in report.gate:
        if not outcome.met:
            line = phrases.outcome_line(outcome)
            verdict += textwrap.wrap(line, WIDTH, subsequent_indent=" " * 9)
    return "\n\n".join([*blocks, "\n".join(verdict)])


def _size_table(report: Report) -> str:
    metric, neurons = facts.primary_metric(report), facts.shows_neurons(report)
    titles = ["heads", *(["neurons", "multiply-adds"] if neurons else []), "ONNX MB"]
    if metric is not None:
        titles.append(f"{facts.metric_style(metric).label} (difference)")
    rows = []
    for model in facts.models(report):
        cells = [_shorten(model.name), phrases.kept(model, "heads")]
        if neurons:
            cells += [phrases.kept(model, "neurons"), numbers.percent(model.macs_share, 1, 1)]
        # Other engines run the same graphs, or files of their own.
        cells.append(numbers.megabytes(model.onnx_bytes) if model.in_default_engine else "")
        if metric is not None:
            compared = facts.comparison(model, metric)
            change = "" if compared is None else f" ({phrases.change(compared)})"
            cells.append(f"{facts.metric_style(metric).score(facts.value(model, metric))}{change}")
        rows.append(cells)
    return render_text(columns("model", *titles), rows)


def _speed_tables(report: Report) -> Iterator[str]:
    """Tables of sentences per second, two batch sizes in each, which fit side by side."""
    sizes = facts.batch_sizes(report)
    cells: dict[tuple[str, int], str] = {}
    for row in facts.all_timings(report):
        gain = "" if row.speedup is None else f" ({phrases.speedup(row)})"
        cells[row.variant, row.batch_size] = f"{numbers.adaptive(row.sentences_per_second)}{gain}"
    for start in range(0, len(sizes), 2):
        part = sizes[start : start + 2]
        titles = columns("sentences/s (speed-up)", *(f"batch {size}" for size in part))
        rows = [
            [_shorten(model.name), *(cells.get((model.name, size), "") for size in part)]
            for model in facts.models(report)
        ]
        yield render_text(titles, rows)


def _shorten(name: str) -> str:
    """A name without its middle: its end tells the builds of one model apart."""
    name, half = numbers.printable(name), (_NAME_WIDTH - 3) // 2
    return name if len(name) <= _NAME_WIDTH else f"{name[:half]}...{name[-half:]}"


def gate_text(report: Report) -> str:
    """The output of `compress gate`: a line for each outcome, and the changes as a table."""
    lines = [phrases.outcome_line(outcome) for outcome in report.gate]
    if report.changes:
        table = baseline(report)
        lines += ["", render_text(table.columns, table.rows)]
    return "\n".join(lines)


def bench_text(throughput: Throughput) -> str:
    """The output of `compress bench`: the conditions, and the tables of a report about speed."""
    tables = [timing_table(throughput.rows), engine_table(throughput.rows)]
    conditions = (
        f"{phrases.providers(throughput)}, {throughput.precision}, {throughput.threads} threads, "
        f"lengths: {throughput.lengths}"
    )
    return "\n\n".join([conditions, *(render_text(x.columns, x.rows) for x in tables if x.rows)])


def summary(report: Report) -> dict[str, Any]:
    """The report for scripts; numbers that are not finite become None, which JSON can hold."""
    return _finite(
        {
            "model": report.model,
            "task": report.task,
            "metric": facts.primary_metric(report),
            "dense": _model_summary(report, report.dense),
            "variants": [_model_summary(report, variant) for variant in report.variants],
            **gate_summary(report),
            "verdict": sentences.verdict(report),
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
        *("checkpoint_bytes", "onnx_bytes"),
    }
    return {
        **model.model_dump(include=fields),
        "heads_kept": facts.kept(model, "heads"),
        "heads_total": facts.total(model, "heads"),
        "neurons_kept": facts.kept(model, "neurons"),
        "neurons_total": facts.total(model, "neurons"),
        "quality": dict(model.quality.metrics) if model.quality else {},
        "comparisons": _comparisons(model.comparisons),
        "base": model.base or None,
        "base_comparisons": _comparisons(model.base_comparisons),
        "throughput": [
            {
                **row.model_dump(),
                "interval": row.speedup_interval,
                "pays": None if row.speedup is None else facts.pays(row),
            }
            for row in facts.timings(report, model.name)
        ],
    }


def _comparisons(made: Sequence[Comparison]) -> dict[str, Any]:
    return {
        x.metric: x.model_dump() | {"judgement": facts.JUDGMENT_WORDS[facts.judge(x)]} for x in made
    }


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    finite: dict[str, Any] = json.loads(json.dumps(data), parse_constant=lambda name: None)
    return finite
