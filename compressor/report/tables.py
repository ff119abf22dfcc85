"""The report's tables, from its numbers to cells of text; every format shows these.

A cell says nothing that another table says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from compressor.report import facts, gate_text, numbers, phrases, searches
from compressor.report.model_tables import engines, shapes, size, throughput, units
from compressor.report.schema import Report
from compressor.report.table import Column, ReportTable, columns
from compressor.results import Comparison, Ranking, Source, Timing, Variant

_FASTER: dict[facts.Gain, str] = {
    "faster": " times as fast",
    "same": ", no measurable gain",
    "slower": ", slower",
    "unknown": ", not usable",
}


def tables(report: Report) -> dict[str, ReportTable]:
    """All tables that have rows, by key, in their order on a page; `conclusion` stands above."""
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


def conclusion(report: Report) -> ReportTable | None:
    """Quality, latency and size of dense and of the most important variant, and the difference.

    Beside it what the dense model's low precision gives alone. None if there is no variant.
    """
    variant = facts.headline(report)
    if variant is None:
        return None
    dense, alone = report.dense, facts.dense_alone(report, variant)
    titles, builds = [f"{dense.name} {dense.precision}", variant.name, "Difference"], [variant]
    if alone is not None:
        titles += [f"Dense {alone.precision} alone", "Difference"]
        builds.append(alone)
    rows = []
    metric = facts.primary_metric(report)
    if metric is not None:
        style = facts.metric_style(metric)
        cells = [style.title, style.score(facts.value(dense, metric))]
        for build in builds:
            cells += [style.score(facts.value(build, metric)), _change(build, metric)]
        rows.append(tuple(cells))
    timed = facts.timings(report, dense.name)
    for row in {x.batch_size: x for x in timed[:1] + timed[-1:]}.values():
        cells = [f"Latency at batch {row.batch_size} (ms)"]
        cells.append(numbers.adaptive(row.latency_ms.get("p50")))
        for build in builds:
            cells += _latency(facts.timings(report, build.name), row.batch_size)
        rows.append(tuple(cells))
    cells = ["Size (ONNX MB)", numbers.megabytes(dense.onnx_bytes)]
    for build in builds:
        cells.append(numbers.megabytes(build.onnx_bytes))
        cells.append(numbers.change(build.onnx_bytes, dense.onnx_bytes))
    rows.append(tuple(cells))
    caption = (
        "Difference from dense, with 95% intervals; latency is the median of one batch, the "
        "speed-up is in sentences per second."
    )
    return ReportTable("conclusion", caption, columns("Measured", *titles), tuple(rows))


def _change(build: Variant, metric: str) -> str:
    compared = facts.comparison(build, metric)
    if compared is None:
        return numbers.ABSENT
    return f"{phrases.change(compared)}, {facts.JUDGMENT_WORDS[facts.judge(compared)]}"


def _latency(timings: list[Timing], batch_size: int) -> tuple[str, str]:
    """The median, and `1.16 [1.14, 1.18] times as fast` or `0.99 [0.97, 1.01], no …`."""
    for row in timings:
        if row.batch_size == batch_size:
            gain = f"{phrases.speedup(row)}{_FASTER[facts.gain(row)]}"
            return numbers.adaptive(row.latency_ms.get("p50")), gain
    return numbers.ABSENT, numbers.ABSENT


def samples(report: Report) -> ReportTable | None:
    """A few test rows with the answers of dense and of the most important variant."""
    variant = facts.headline(report)
    models = [report.dense, *([] if variant is None else [variant])]
    if not report.samples or not all(model.samples for model in models):
        return None

    def short(text: str) -> str:
        """A long number with four digits; other texts as they are."""
        return f"{float(text):.4g}" if re.fullmatch(r"-?\d+\.\d{4,}(?:e-?\d+)?", text) else text

    answers = zip(*(model.samples for model in models), strict=True)
    return ReportTable(
        "samples",
        f"{len(report.samples)} test rows at even distances, not chosen by their answers.",
        (*columns("Text, Reference"), *(Column(model.name, numeric=False) for model in models)),
        tuple(
            (" / ".join(row.texts), *map(short, (row.reference, *both)))
            for row, both in zip(report.samples, answers, strict=False)
        ),
        title="Sample answers",
    )


def gate(report: Report) -> ReportTable:
    """Gate rules and whether they are met."""
    rows = [(x.variant, x.rule, gate_text.result(x), x.message) for x in report.gate]
    return ReportTable(
        "gate",
        "Gate: every rule for every variant, by 95% confidence bounds.",
        columns("Model, Rule, Result, Measured"),
        tuple(rows),
        title="Gate",
    )


def baseline(report: Report) -> ReportTable:
    """What changed since an earlier run."""
    rows = []
    for change in report.changes:
        both = (change.before, change.after)
        values = (numbers.fixed(value, 0 if abs(value) >= 1e4 else 3) for value in both)
        bounds = "" if change.interval is None else numbers.interval(change.interval, 3)
        result = gate_text.change_result(change) + (f" ({change.note})" if change.note else "")
        rows.append((change.variant, change.what, *values, bounds, result))
    return ReportTable(
        "baseline",
        "Compared with the baseline: what each run measured against its own dense model. "
        "Intervals are of the change, of speed-ups of the ratio.",
        columns("Model, What, >Baseline, >Now, >95% interval, Result"),
        tuple(rows),
        title="Compared with the baseline",
    )


def quality(report: Report) -> ReportTable:
    """Every metric of every model with its difference from dense."""
    metrics, measured = facts.metrics(report), report.dense.quality
    rows = [
        row
        for metric in metrics
        for model in facts.models(report)
        for row in _quality_rows(report, model, metric)
    ]
    counted = facts.metric_style(metrics[0]).counted if metrics else "rows"
    of = f", means over {measured.rows:,} {counted}" if measured and counted != "rows" else ""
    default_of: dict[str, list[str]] = {}  # default precision -> models that come in several
    for variant in facts.pruned(report):
        if len(facts.precisions(report, variant)) > 1:
            precision = facts.default_build(report, variant).precision
            default_of.setdefault(precision, []).append(variant.name)
    return ReportTable(
        "quality",
        f"Quality on the test rows{of}. The interval is the 95% interval of the difference "
        "(pruned minus dense) by paired bootstrap; p is two-sided, for accuracy by McNemar's exact "
        "test. A difference is significant if p is below 0.05 and the interval excludes 0.",
        columns("Model, Metric, >Score, Against, >Difference, >95% interval, >p, Result"),
        tuple(rows),
        title="Quality",
        notes=tuple(
            f"Unless a precision is named, {phrases.join(names)} "
            f"{'runs' if len(names) == 1 else 'run'} in {precision}."
            for precision, names in default_of.items()
        ),
    )


def _quality_rows(report: Report, model: Variant, metric: str) -> Iterator[tuple[str, ...]]:
    """A row against dense, and one against the float32 model for another precision of it."""
    style, compared = facts.metric_style(metric), facts.comparison(model, metric)
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
    for against_base in model.base_comparisons:
        if against_base.metric == metric:
            yield (*start, model.base, *_difference(against_base))


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
    rows = [
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
    ]
    return ReportTable(
        "checks",
        "Verification: the largest deviation seen and the tolerance it had to meet.",
        columns("Model, Check, >Largest difference, >Tolerance, Result, Detail"),
        tuple(rows),
        title="Verification",
    )


def origin(report: Report) -> ReportTable:
    """The model, the method, the data and the run, as names and values."""
    pairs = [
        ("Model", report.model),
        ("Revision", report.revision or "not recorded"),
        ("Architecture", report.model_type),
        ("Task", report.task),
    ]
    pruned = facts.pruned(report)
    if all(variant.scoring is None for variant in pruned):
        pairs += _scoring(report.scoring, "")
    else:
        for variant in pruned:
            pairs += _scoring(facts.scoring(report, variant), f" of {variant.name}")
    for variant in pruned:
        pairs.append((f"Budget of {variant.name}", variant.budget))
        if variant.selection:
            pairs.append((f"Selection of {variant.name}", variant.selection))
        pairs.append((f"Recovery of {variant.name}", variant.recovery or "not recorded"))
    pairs += [
        *_vocabularies(report),
        ("Calibration data", _source(report.calibration)),
        ("Test data", _source(report.test)),
        ("Seed", str(report.seed)),
        ("Command", report.command),
        ("Created", report.created),
        ("compress", report.tool_version),
    ]
    return ReportTable("origin", "Model, method and data.", (), tuple(pairs), "How it was made")


def _scoring(scoring: Ranking | None, of: str) -> list[tuple[str, str]]:
    if scoring is None:
        return [(f"Scores{of}", "none")]
    cost = ", ".join(f"{k} {numbers.adaptive(v)}" for k, v in scoring.cost.items())
    return [
        (f"Scoring method{of}", scoring.method),
        (f"Scoring signature{of}", scoring.signature),
        (f"Scoring cost{of}", cost or "not recorded"),
    ]


def _vocabularies(report: Report) -> Iterator[tuple[str, str]]:
    """Tokens that an encoder keeps and that decoders score, if a text says which."""
    models = [report.dense, *facts.pruned(report)]
    if report.source_text is not None:
        embedded = "; ".join(
            f"{model.name} {model.embedding_rows:,} ({numbers.megabytes(model.embedding_bytes)} MB)"
            for model in models
            if model.embedding_rows is not None and model.embedding_bytes is not None
        )
        yield "Source text", _source(report.source_text)
        yield "Tokens with an embedding (float32)", embedded
    if report.target_text is not None:
        yield "Target text", _source(report.target_text)
    scored = {model.name: model.output_tokens for model in models if model.output_tokens}
    if len(set(scored.values())) > 1:
        text = "; ".join(f"{name} {count:,}" for name, count in scored.items())
        yield "Tokens that the decoder scores", text


def _source(source: Source | None) -> str:
    if source is None:
        return "none"
    return f"{source.rows:,} rows of {', '.join(source.files)}; SHA-256 {source.sha256}"


def signatures(report: Report) -> ReportTable:
    """Metric signatures, one per model if they differ: such values cannot be compared."""
    pairs = []
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
    caption = "Signatures of the metrics."
    return ReportTable("signatures", caption, (), tuple(pairs), "Signatures", folded=True)


def environment(report: Report) -> ReportTable:
    """Provider, hardware and versions of the measurements."""
    pairs = [*report.hardware.items(), *report.versions.items()]
    if report.throughput is not None:
        run = report.throughput
        pairs[:0] = [
            ("Provider", run.provider),
            ("Device", run.device),
            ("Timed precision", run.precision),
            ("Threads", str(run.threads)),
            ("Lengths", run.lengths),
        ]
    caption = "Where the measurements were taken."
    return ReportTable("environment", caption, (), tuple(pairs), "Environment", folded=True)
