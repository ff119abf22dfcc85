"""The result in a few lines for the end of stdout, and as the one JSON object of `--json`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import Any

from compressor.report import facts, gate_text, numbers, phrases, sentences
from compressor.report.rule import worst_of
from compressor.report.schema import Report
from compressor.report.table import Column, columns
from compressor.report.text_table import render_table
from compressor.report.unit_tables import kept, macs
from compressor.results import Comparison, Throughput, Timing, Variant

WIDTH = 100
_NAME_WIDTH = 24


def short_table(report: Report) -> str:
    """Plain text of at most 100 columns: size and quality, speed by batch size, the verdict.

    Ends without a newline.
    """
    blocks = [_size_table(report), *_speed_tables(report)]
    verdict = textwrap.wrap(numbers.printable(sentences.verdict(report)), WIDTH)
    unmet = [gate_text.outcome_line(outcome) for outcome in report.gate if not outcome.met]
    for line in unmet:
        verdict += textwrap.wrap(numbers.printable(line), WIDTH, subsequent_indent=" " * 9)
    return "\n\n".join([*blocks, "\n".join(verdict)])


def _size_table(report: Report) -> str:
    """Names are shortened so that the table fits.

    Where neurons were removed, multiply-adds say more than parameters, and not both fit.
    """
    metric = facts.primary_metric(report)
    title = facts.metric_style(metric).label if metric else "quality"
    neurons = bool(facts.neuron_kinds(report))
    titles = [
        "heads",
        *(["neurons", "multiply-adds"] if neurons else []),
        f"{title} (difference, 95% interval)",
        *([] if neurons else ["parameters"]),
        "ONNX MB",
    ]
    rows = [
        [
            kept(model, "heads"),
            *([kept(model, "neurons"), macs(model)] if neurons else []),
            _quality_cell(model, metric),
            *([] if neurons else [numbers.compact(model.parameters)]),
            # Other engines run the same graphs, or files of their own.
            numbers.megabytes(model.onnx_bytes) if model.in_default_engine else "",
        ]
        for model in facts.models(report)
    ]
    others = render_table([Column(title) for title in titles], rows)
    room = WIDTH - 2 - max(map(len, others.splitlines()))
    names = [_shorten(model.name, min(room, _NAME_WIDTH)) for model in facts.models(report)]
    named = ([name, *row] for name, row in zip(names, rows, strict=True))
    return render_table(columns("model", *titles), named)


def _quality_cell(model: Variant, metric: str | None) -> str:
    if metric is None:
        return "not measured"
    style = facts.metric_style(metric)
    found = facts.comparison(model, metric)
    if found is None:
        return style.score(facts.value(model, metric))
    return f"{style.score(found.pruned)} ({phrases.change(found)})"


def _speed_tables(report: Report) -> Iterator[str]:
    """Tables of sentences per second, with as many batch sizes side by side as fit."""
    from rich.cells import cell_len

    sizes = facts.batch_sizes(report)
    by_model = {
        model.name: {row.batch_size: row for row in facts.timings(report, model.name)}
        for model in facts.models(report)
    }
    while sizes:
        for count in range(len(sizes), 0, -1):
            titles = columns("sentences/s (speed-up)", *(f"batch {size}" for size in sizes[:count]))
            rows = [
                [_shorten(name), *(_speed_cell(timings.get(size)) for size in sizes[:count])]
                for name, timings in by_model.items()
            ]
            table = render_table(titles, rows)
            if max(map(cell_len, table.splitlines())) <= WIDTH:
                break
        yield table
        sizes = sizes[count:]


def _speed_cell(row: Timing | None) -> str:
    if row is None:
        return numbers.ABSENT
    speed = numbers.adaptive(row.sentences_per_second)
    return speed if row.speedup is None else f"{speed} ({phrases.speedup(row)})"


def _shorten(name: str, width: int = _NAME_WIDTH) -> str:
    """A name without its middle: its end tells the builds of one model apart."""
    from rich.cells import cell_len, set_cell_size

    name = numbers.printable(name)
    if cell_len(name) <= width:
        return name
    tail = (width - 3) // 2
    start = set_cell_size(name, width - 3 - tail).rstrip()
    return f"{start}...{set_cell_size(name[::-1], tail).rstrip()[::-1]}"


def timing_table(throughput: Throughput) -> str:
    """What `compress bench` shows: the conditions, then a line per model and batch size.

    In brackets the ratio of multiply-adds. With several engines also what each gains over the first
    artifact in the same engine, and in the fastest one.
    """
    rows = []
    several = any(row.fastest is not None for row in throughput.rows)
    for row in throughput.rows:
        memory = "" if row.peak_memory_mib is None else f"{row.peak_memory_mib:.0f}"
        speedup = ""
        if row.speedup is not None:
            speedup = phrases.speedup(row)
            speedup += "" if row.macs_ratio is None else f" ({row.macs_ratio:.2f})"
        rows.append(
            [
                str(row.batch_size),
                row.variant,
                f"{row.sentences_per_second:.1f}",
                f"{row.tokens_per_second:.0f}",
                *(f"{row.latency_ms[name]:.1f}" for name in ("p50", "p90", "p99")),
                memory,
                speedup,
                *(_engine_gains(row) if several else ()),
            ]
        )
    titles = (
        Column("batch"),
        *columns("model", "sent/s", "tok/s", "p50 ms", "p90", "p99", "MiB"),
        *columns("speed-up (multiply-adds)"),
        *(columns("same engine", "fastest") if several else ()),
    )
    table = render_table(titles, rows)
    return (
        f"{throughput.provider}, {throughput.precision}, {throughput.threads} threads, "
        f"lengths: {throughput.lengths}\n{table}"
    )


def _engine_gains(row: Timing) -> tuple[str, str]:
    same = numbers.fixed(row.engine_speedup, 2)
    return same, f"{numbers.fixed(row.fastest_speedup, 2)} {row.fastest}"


def summary(report: Report) -> dict[str, Any]:
    """The report for scripts, with full precision and only JSON values.

    Numbers that are not finite become None, which JSON can hold.
    """
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
    """What became of the rules, for scripts; numbers as in `summary`."""
    return _finite(
        {
            "gate": [dict(outcome) for outcome in report.gate],
            "gate_met": all(outcome.met for outcome in report.gate) if report.gate else None,
            "gate_verdict": worst_of(x.verdict for x in report.gate) if report.gate else None,
            "changes": [dict(change) for change in report.changes],
        }
    )


_MODEL = {
    *("name", "directory", "precision", "engine", "default", "macs_share", "parameters"),
    *("checkpoint_bytes", "onnx_bytes"),
}
_COMPARISON = {"difference", "interval", "p_value", "floor", "at_floor"}
_TIMING = {
    *("batch_size", "sentences_per_second", "tokens_per_second", "speedup", "macs_ratio"),
    *("engine_speedup", "fastest_speedup", "fastest"),
}


def _model_summary(report: Report, model: Variant) -> dict[str, Any]:
    counts = {
        f"{units}_{which}": count(model, units)
        for units in ("heads", "neurons")
        for which, count in (("kept", facts.kept), ("total", facts.total))
    }
    return {
        **model.model_dump(include=_MODEL),
        **counts,
        "quality": dict(model.quality.metrics) if model.quality else {},
        "comparisons": {found.metric: _comparison_summary(found) for found in model.comparisons},
        "base": model.base or None,
        "base_comparisons": {
            found.metric: _comparison_summary(found) for found in model.base_comparisons
        },
        "throughput": [_timing_summary(row) for row in facts.timings(report, model.name)],
    }


def _comparison_summary(found: Comparison) -> dict[str, Any]:
    judged = facts.JUDGMENT_WORDS[facts.judge(found)]
    return {**found.model_dump(include=_COMPARISON), "judgement": judged}


def _timing_summary(row: Timing) -> dict[str, Any]:
    pays = None if row.speedup is None else facts.pays(row)
    return {**row.model_dump(include=_TIMING), "interval": row.speedup_interval, "pays": pays}


def _finite(value: Any) -> Any:
    """A value in which numbers that are not finite became None, and tuples lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
