"""The result in a few lines for the end of stdout, and as the one JSON object of `--json`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import Any

from compressor.report import facts, numbers, phrases, sentences
from compressor.report.schema import Report
from compressor.report.table import Column, columns, render_text
from compressor.results import Comparison, Throughput, Variant

WIDTH = 100
_NAME_WIDTH = 24


def short_table(report: Report) -> str:
    """Plain text of at most 100 columns: size and quality, speed by batch size, the verdict.

    Ends without a newline.
    """
    blocks = [_size_table(report), *_speed_tables(report)]
    verdict = textwrap.wrap(numbers.printable(sentences.verdict(report)), WIDTH)
    for outcome in report.gate:
        if not outcome.met:
            line = phrases.outcome_line(outcome)
            verdict += textwrap.wrap(line, WIDTH, subsequent_indent=" " * 9)
    return "\n\n".join([*blocks, "\n".join(verdict)])


def _size_table(report: Report) -> str:
    """Size and quality; names are shortened so that the table fits.

    If neurons were removed, multiply-adds say more than parameters, and not both fit.
    """
    metric, models = facts.primary_metric(report), facts.models(report)
    neurons = facts.shows_neurons(report)
    quality = facts.metric_style(metric).label if metric else "quality"
    titles = [
        "heads",
        *(["neurons", "multiply-adds"] if neurons else []),
        f"{quality} (difference, 95% interval)",
        *([] if neurons else ["parameters"]),
        "ONNX MB",
    ]
    rows = [
        [
            phrases.kept(model, "heads"),
            *([phrases.kept(model, "neurons"), phrases.macs(model)] if neurons else []),
            _quality_cell(model, metric),
            *([] if neurons else [numbers.compact(model.parameters)]),
            # Other engines run the same graphs, or files of their own.
            numbers.megabytes(model.onnx_bytes) if model.in_default_engine else "",
        ]
        for model in models
    ]
    unnamed = render_text([Column(title) for title in titles], rows)
    room = min(WIDTH - 2 - max(map(len, unnamed.splitlines())), _NAME_WIDTH)
    named = ([_shorten(x.name, room), *row] for x, row in zip(models, rows, strict=True))
    return render_text(columns("model", *titles), named)


def _quality_cell(model: Variant, metric: str | None) -> str:
    if metric is None:
        return "not measured"
    style, compared = facts.metric_style(metric), facts.comparison(model, metric)
    if compared is None:
        return style.score(facts.value(model, metric))
    return f"{style.score(compared.pruned)} ({phrases.change(compared)})"


def _speed_tables(report: Report) -> Iterator[str]:
    """Tables of sentences per second, with as many batch sizes side by side as fit."""
    from rich.cells import cell_len

    sizes = facts.batch_sizes(report)
    cells: dict[tuple[str, int], str] = {}
    for row in facts.all_timings(report):
        speed = numbers.adaptive(row.sentences_per_second)
        gain = "" if row.speedup is None else f" ({phrases.speedup(row)})"
        cells[row.variant, row.batch_size] = f"{speed}{gain}"
    names = [model.name for model in facts.models(report)]
    while sizes:
        for count in range(len(sizes), 0, -1):
            part = sizes[:count]
            titles = columns("sentences/s (speed-up)", *(f"batch {size}" for size in part))
            rows = [
                [_shorten(name), *(cells.get((name, size), numbers.ABSENT) for size in part)]
                for name in names
            ]
            table = render_text(titles, rows)
            if max(map(cell_len, table.splitlines())) <= WIDTH:
                break
        yield table
        sizes = sizes[count:]


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
    """The output of `compress bench`: the conditions, then a line per model and batch size.

    In brackets the ratio of multiply-adds. With several engines also the gain over the first
    artifact in the same engine, and in the fastest one.
    """
    rows = []
    several = any(row.fastest is not None for row in throughput.rows)
    for row in throughput.rows:
        speedup = "" if row.speedup is None else phrases.speedup(row)
        if speedup and row.macs_ratio is not None:
            speedup += f" ({row.macs_ratio:.2f})"
        cells = [
            str(row.batch_size),
            row.variant,
            f"{row.sentences_per_second:.1f}",
            f"{row.tokens_per_second:.0f}",
            *(f"{row.latency_ms[name]:.1f}" for name in ("p50", "p90", "p99")),
            "" if row.peak_memory_mib is None else f"{row.peak_memory_mib:.0f}",
            speedup,
        ]
        if several:
            cells.append(numbers.fixed(row.engine_speedup, 2))
            cells.append(f"{numbers.fixed(row.fastest_speedup, 2)} {row.fastest}")
        rows.append(cells)
    titles = columns(
        ">batch, model, >sent/s, >tok/s, >p50 ms, >p90, >p99, >MiB, speed-up (multiply-adds)"
        + (", same engine, >fastest" if several else "")
    )
    return (
        f"{throughput.provider}, {throughput.precision}, {throughput.threads} threads, "
        f"lengths: {throughput.lengths}\n{render_text(titles, rows)}"
    )


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
    timed = {
        *("batch_size", "sentences_per_second", "tokens_per_second", "speedup", "macs_ratio"),
        *("engine_speedup", "fastest_speedup", "fastest"),
    }
    return {
        **model.model_dump(include=fields),
        "heads_kept": facts.kept(model, "heads"),
        "heads_total": facts.total(model, "heads"),
        "neurons_kept": facts.kept(model, "neurons"),
        "neurons_total": facts.total(model, "neurons"),
        "quality": dict(model.quality.metrics) if model.quality else {},
        "comparisons": {x.metric: _comparison_summary(x) for x in model.comparisons},
        "base": model.base or None,
        "base_comparisons": {x.metric: _comparison_summary(x) for x in model.base_comparisons},
        "throughput": [
            {
                **row.model_dump(include=timed),
                "interval": row.speedup_interval,
                "pays": None if row.speedup is None else facts.pays(row),
            }
            for row in facts.timings(report, model.name)
        ],
    }


def _comparison_summary(compared: Comparison) -> dict[str, Any]:
    fields = {"difference", "interval", "p_value", "floor", "at_floor"}
    judged = facts.JUDGMENT_WORDS[facts.judge(compared)]
    return {**compared.model_dump(include=fields), "judgement": judged}


def _finite(value: Any) -> Any:
    """A value in which numbers that are not finite became None, and tuples lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
