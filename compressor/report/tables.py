"""The report's tables, from its numbers to cells of text; every format shows these.

A cell says nothing that another table says: units and sizes of a model stand in `unit_tables.size`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from compressor.report import facts, gate_text, numbers
from compressor.report.schema import Change, Report
from compressor.report.table import Column, ReportTable, columns, named_values
from compressor.results import Comparison, Ranking, Source, Timing, Variant
from compressor.tasks import TASKS

Pairs = list[tuple[str, str]]


def quality(report: Report) -> ReportTable | None:
    """Every metric of every model with its difference from dense; None without test rows."""
    rows = [
        row
        for metric in facts.metrics(report)
        for model in facts.models(report)
        for row in _quality_rows(report, model, metric)
    ]
    if not rows:
        return None
    counted, quality = facts.metric_style(facts.metrics(report)[0]).counted, report.dense.quality
    of = f", means over {quality.rows:,} {counted}" if quality and counted != "rows" else ""
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
    )


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


def throughput(report: Report) -> ReportTable | None:
    """Speed of every model at every batch size; None where nothing was timed."""
    if report.throughput is None:
        return None
    kind = TASKS[report.task].counted_tokens
    return ReportTable(
        key="throughput",
        caption="Throughput by batch size. Latency is that of one batch; tokens are "
        f"{kind} tokens; the interval is the 95% interval of the speed-up. The ratio of "
        "multiply-adds is dense over the model's, at the lengths that were timed.",
        columns=columns(
            "Model",
            *("Batch", "Sentences/s", "Tokens/s", "p50 ms", "p90 ms", "p99 ms", "Peak MiB"),
            *("Speed-up", "95% interval", "Ratio of multiply-adds"),
        ),
        rows=_by_batch(report, _throughput_cells),
    )


def engines(report: Report) -> ReportTable | None:
    """What models gain over dense ones in the same engine and in the fastest; None without."""
    rows = _by_batch(report, _engine_cells)
    if report.throughput is None or all(row.fastest is None for row in report.throughput.rows):
        return None
    return ReportTable(
        key="engines",
        caption="Speed-up by engine, with 95% intervals: over the dense model in the same engine, "
        "and over the fastest dense build of any engine at that batch size.",
        columns=columns(
            *("Model", "Batch", "Engine", "Precision", "Sentences/s", "Same engine"),
            *("95% interval", "Fastest dense", "95% interval", "Which is"),
        ),
        rows=rows,
    )


def _engine_cells(report: Report, row: Timing) -> tuple[str, ...]:
    return (
        row.engine or "",
        row.precision or "",
        numbers.adaptive(row.sentences_per_second),
        numbers.fixed(row.engine_speedup, 2),
        numbers.interval(row.engine_speedup_interval, 2),
        numbers.fixed(row.fastest_speedup, 2),
        numbers.interval(row.fastest_speedup_interval, 2),
        row.fastest or "",
    )


def _throughput_cells(report: Report, row: Timing) -> tuple[str, ...]:
    start = (
        numbers.adaptive(row.sentences_per_second),
        numbers.adaptive(row.tokens_per_second),
        *(numbers.adaptive(row.latency_ms.get(name)) for name in ("p50", "p90", "p99")),
        numbers.adaptive(row.peak_memory_mib),
    )
    if row.variant == report.dense.name:
        return (*start, "", "", "")
    return (
        *start,
        numbers.fixed(row.speedup, 2),
        numbers.interval(row.speedup_interval, 2),
        numbers.fixed(row.macs_ratio, 2),
    )


def shapes(report: Report) -> ReportTable | None:
    """The shape that was timed at each batch size; None without timings."""
    if report.throughput is None:
        return None
    return ReportTable(
        key="shapes",
        caption="Shapes that were timed (mean tokens per row).",
        columns=columns(
            "Model",
            *("Batch", "Source tokens", "With padding", "Generated tokens", "Runs"),
        )
        + columns("Precision, Provider"),
        rows=_by_batch(report, _shape_cells),
    )


def _shape_cells(report: Report, row: Timing) -> tuple[str, ...]:
    assert report.throughput is not None  # the row is one of its rows
    return (
        numbers.fixed(row.source_tokens, 1),
        numbers.fixed(row.padded_source_tokens, 1),
        numbers.fixed(row.target_tokens, 1),
        str(row.runs),
        row.precision or report.throughput.precision,
        row.provider or report.throughput.provider,
    )


def _by_batch(
    report: Report, cells: Callable[[Report, Timing], tuple[str, ...]]
) -> tuple[tuple[str, ...], ...]:
    """Rows grouped by batch size, dense first in each group."""
    return tuple(
        (row.variant, str(size), *cells(report, row))
        for size in facts.batch_sizes(report)
        for model in facts.models(report)
        for row in facts.timings(report, model.name)
        if row.batch_size == size
    )


def checks(report: Report) -> ReportTable | None:
    """Verification of every model; None where no check is recorded."""
    rows = tuple(
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
    )
    if not rows:
        return None
    return ReportTable(
        key="checks",
        caption="Verification: the largest deviation seen and the tolerance it had to meet.",
        columns=(
            *columns("Model, Check", "Largest difference", "Tolerance"),
            *columns("Result, Detail"),
        ),
        rows=rows,
    )


def gate(report: Report) -> ReportTable | None:
    """Gate rules and whether they are met; None without rules."""
    if not report.gate:
        return None
    return ReportTable(
        key="gate",
        caption="Gate: every rule for every variant, by 95% confidence bounds.",
        columns=columns("Model, Rule, Result, Measured"),
        rows=tuple(
            (outcome.variant, outcome.rule, gate_text.result(outcome), outcome.message)
            for outcome in report.gate
        ),
    )


def baseline(report: Report) -> ReportTable | None:
    """What changed since an earlier run; None where none was compared with."""
    if not report.changes:
        return None
    return ReportTable(
        key="baseline",
        caption="Compared with the baseline: what each run measured against its own dense model. "
        "Intervals are of the change, of speed-ups of the ratio.",
        columns=(*columns("Model, What", "Baseline", "Now", "95% interval"), *columns("Result")),
        rows=tuple(_change_row(change) for change in report.changes),
    )


def _change_row(change: Change) -> tuple[str, ...]:
    both = (change.before, change.after)
    values = (numbers.fixed(value, 0 if abs(value) >= 1e4 else 3) for value in both)
    bounds = "" if change.interval is None else numbers.interval(change.interval, 3)
    note = f" ({change.note})" if change.note else ""
    return (change.variant, change.what, *values, bounds, gate_text.change_result(change) + note)


def origin(report: Report) -> ReportTable | None:
    """The model, the method, the data and the run."""
    pairs = [
        ("Model", report.model),
        ("Revision", report.revision or "not recorded"),
        ("Architecture", report.model_type),
        ("Task", report.task),
    ]
    if all(variant.scoring is None for variant in facts.pruned(report)):
        pairs += _scoring(report.scoring, "")
    else:
        for variant in facts.pruned(report):
            pairs += _scoring(facts.scoring(report, variant), f" of {variant.name}")
    for variant in facts.pruned(report):
        pairs.append((f"Budget of {variant.name}", variant.budget))
        if variant.selection:
            pairs.append((f"Selection of {variant.name}", variant.selection))
        pairs.append((f"Recovery of {variant.name}", variant.recovery or "not recorded"))
    pairs += [*_kept_tokens(report), *_scored_tokens(report)]
    pairs += [
        ("Calibration data", _source(report.calibration)),
        ("Test data", _source(report.test)),
        ("Seed", str(report.seed)),
        ("Command", report.command),
        ("Created", report.created),
        ("compress", report.tool_version),
    ]
    return named_values("origin", "Model, method and data.", pairs)


def _scoring(scoring: Ranking | None, of: str) -> Pairs:
    if scoring is None:
        return [(f"Scores{of}", "none")]
    cost = ", ".join(f"{k} {numbers.adaptive(v)}" for k, v in scoring.cost.items())
    return [
        (f"Scoring method{of}", scoring.method),
        (f"Scoring signature{of}", scoring.signature),
        (f"Scoring cost{of}", cost or "not recorded"),
    ]


def _kept_tokens(report: Report) -> Pairs:
    """The rows of each encoder's table of embeddings, where a text says which are kept."""
    if report.source_text is None:
        return []
    counts = [
        f"{model.name} {model.embedding_rows:,} ({numbers.megabytes(model.embedding_bytes)} MB)"
        for model in [report.dense, *facts.pruned(report)]
        if model.embedding_rows is not None and model.embedding_bytes is not None
    ]
    return [
        ("Source text", _source(report.source_text)),
        ("Tokens with an embedding (float32)", "; ".join(counts)),
    ]


def _scored_tokens(report: Report) -> Pairs:
    """The output tokens of each decoder, where the models differ in them."""
    models = [report.dense, *facts.pruned(report)]
    counts = {model.name: model.output_tokens for model in models if model.output_tokens}
    pairs: Pairs = []
    if report.target_text is not None:
        pairs.append(("Target text", _source(report.target_text)))
    if len(set(counts.values())) > 1:
        text = "; ".join(f"{name} {count:,}" for name, count in counts.items())
        pairs.append(("Tokens that the decoder scores", text))
    return pairs


def _source(source: Source | None) -> str:
    if source is None:
        return "none"
    return f"{source.rows:,} rows of {', '.join(source.files)}; SHA-256 {source.sha256}"


def signatures(report: Report) -> ReportTable | None:
    """Metric signatures, one per model where they differ: such values cannot be compared."""
    pairs: Pairs = []
    for metric in facts.metrics(report):
        by_model = {
            model.name: model.quality.signatures[metric]
            for model in facts.models(report)
            if model.quality and metric in model.quality.signatures
        }
        label = facts.metric_style(metric).label
        if len(set(by_model.values())) == 1:
            pairs.append((label, next(iter(by_model.values()))))
        else:
            pairs += [(f"{label} of {name}", text) for name, text in by_model.items()]
    return named_values("signatures", "Signatures of the metrics.", pairs)


def environment(report: Report) -> ReportTable | None:
    """Provider, hardware and versions of the measurements."""
    pairs: Pairs = []
    if report.throughput is not None:
        run = report.throughput
        pairs += [
            ("Provider", run.provider),
            ("Device", run.device),
            ("Timed precision", run.precision),
            ("Threads", str(run.threads)),
            ("Lengths", run.lengths),
        ]
    pairs += [*report.hardware.items(), *report.versions.items()]
    return named_values("environment", "Where the measurements were taken.", pairs)
