"""The report's tables, from its numbers to cells of text; every format shows these."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from compressor.report import facts, numbers, phrases, searches
from compressor.report.phrases import outcome_result
from compressor.report.schema import Report
from compressor.report.table import Column, ReportTable, make_table
from compressor.results import Source, Timing, Variant
from compressor.tasks import TASKS

_FASTER: dict[facts.Gain, str] = {
    "faster": " times as fast",
    "same": ", no measurable gain",
    "slower": ", slower",
    "unknown": ", not usable",
}
_PAYS: dict[facts.Gain, str] = {
    "faster": "pays",
    "same": "does not pay",
    "slower": "slower than dense",
    "unknown": "not usable",
}


def tables(report: Report) -> dict[str, ReportTable]:
    """All tables that have rows, by key, in their order on a page; `conclusion` stands above."""
    outcomes = [(x.variant, x.rule, outcome_result(x), x.message) for x in report.gate]
    made = (
        make_table("gate", outcomes),
        baseline(report),
        quality(report),
        throughput(report),
        engines(report),
        size(report),
        *searches.describe(report).tables,
        units(report),
        checks(report),
        origin(report),
        signatures(report),
        environment(report),
    )
    return {table.key: table for table in made if table.rows}


def conclusion(report: Report) -> ReportTable | None:
    """Dense, the most important variant, and what the dense model's low precision gives alone."""
    variant, metric = facts.headline(report), facts.primary_metric(report)
    if variant is None:
        return None
    dense, alone = report.dense, facts.dense_alone(report, variant)
    titles, builds = [f"{dense.name} {dense.precision}", variant.name, "Difference"], [variant]
    if alone is not None:
        titles += [f"Dense {alone.precision} alone", "Difference"]
        builds.append(alone)
    rows = []
    if metric is not None:
        style = facts.metric_style(metric)
        cells = [style.title, style.score(facts.value(dense, metric))]
        for build in builds:
            compared, change = facts.comparison(build, metric), numbers.ABSENT
            if compared is not None:
                judgment = facts.JUDGMENT_WORDS[facts.judge(compared)]
                change = f"{phrases.change(compared)}, {judgment}"
            cells += [style.score(facts.value(build, metric)), change]
        rows.append(cells)
    timed = {(x.variant, x.batch_size): x for x in facts.all_timings(report)}
    sizes = facts.batch_sizes(report)
    for batch in dict.fromkeys(sizes[:1] + sizes[-1:]):
        cells = [f"Latency at batch {batch} (ms)"]
        for build in (dense, *builds):
            # The median, and `1.16 [1.14, 1.18] times as fast` or `0.99 [0.97, 1.01], no …`.
            row = timed.get((build.name, batch))
            cells.append(numbers.adaptive(row.latency_ms.get("p50") if row else None))
            if build is not dense:
                gained = row and f"{phrases.speedup(row)}{_FASTER[facts.gain(row)]}"
                cells.append(gained or numbers.ABSENT)
        rows.append(cells)
    cells = ["Size (ONNX MB)", numbers.megabytes(dense.onnx_bytes)]
    for build in builds:
        cells.append(numbers.megabytes(build.onnx_bytes))
        cells.append(numbers.change(build.onnx_bytes, dense.onnx_bytes))
    return make_table("conclusion", map(tuple, [*rows, cells]), more=list(map(Column, titles)))


def samples(report: Report) -> ReportTable | None:
    """A few test rows with the answers of dense and of the most important variant."""
    variant = facts.headline(report)
    models = [report.dense, *([] if variant is None else [variant])]
    if not report.samples or not all(model.samples for model in models):
        return None
    answers = zip(*(model.samples for model in models), strict=False)
    rows = [
        (" / ".join(row.texts), row.reference, *both)
        for row, both in zip(report.samples, answers, strict=False)
    ]
    names = [Column(model.name, numeric=False) for model in models]
    return make_table("samples", rows, more=names, count=len(report.samples))


def baseline(report: Report) -> ReportTable:
    rows = []
    # Sizes and counts have no interval.
    exact = facts.JUDGMENT_WORDS | {"worse": "larger", "better": "smaller", "same": "unchanged"}
    for change in report.changes:
        words = facts.JUDGMENT_WORDS if change.interval else exact
        both = (change.before, change.after)
        values = (numbers.fixed(value, 0 if abs(value) >= 1e4 else 3) for value in both)
        bounds = "" if change.interval is None else numbers.interval(change.interval, 3)
        result = words[change.judgment] + (f" ({change.note})" if change.note else "")
        rows.append((change.variant, change.what, *values, bounds, result))
    return make_table("baseline", rows)


def quality(report: Report) -> ReportTable:
    metrics, measured = facts.metrics(report), report.dense.quality
    counted = facts.metric_style(metrics[0]).counted if metrics else "rows"
    of = f", means over {measured.rows:,} {counted}" if measured and counted != "rows" else ""
    notes = [
        f"Unless a precision is named, {variant.name} runs in "
        f"{facts.default_build(report, variant).precision}."
        for variant in facts.pruned(report)
        if len(facts.precisions(report, variant)) > 1
    ]
    rows: list[tuple[str, ...]] = []
    for metric, model in itertools.product(metrics, facts.models(report)):
        style = facts.metric_style(metric)
        start = (model.name, style.title, style.score(facts.value(model, metric)))
        # With dense, and another precision with the float32 model.
        against = [(report.dense.name, x) for x in model.comparisons if x.metric == metric]
        against += [(model.base, x) for x in model.base_comparisons if x.metric == metric]
        if not against:
            result = "reference" if model is report.dense else "not compared"
            rows.append((*start, "", "", "", "", result))
        for name, compared in against:
            difference = style.difference(compared.difference), style.interval(compared.interval)
            p, judgment = numbers.p_value(compared.p_value), facts.judge(compared)
            rows.append((*start, name, *difference, p, facts.JUDGMENT_WORDS[judgment]))
    return make_table("quality", rows, notes, of=of)


def checks(report: Report) -> ReportTable:
    rows = []
    for model in facts.models(report):
        for check in model.checks:
            values = f"{check.largest_difference:.2e}", f"{check.tolerance:.1e}"
            result = "within" if check.is_met else "EXCEEDED"
            rows.append((model.name, check.name, *values, result, check.detail))
    return make_table("checks", rows)


def origin(report: Report) -> ReportTable:
    pairs: list[tuple[str, str | None]] = [
        ("Model", report.model),
        ("Revision", report.revision),
        ("Architecture", report.model_type),
        ("Task", report.task),
    ]
    pruned = facts.pruned(report)
    scorings = [(f" of {variant.name}", variant.scoring) for variant in pruned if variant.scoring]
    for of, scoring in [*scorings, *([("", report.scoring)] if report.scoring else [])]:
        cost = ", ".join(f"{k} {numbers.adaptive(v)}" for k, v in scoring.cost.items())
        pairs.append((f"Scoring method{of}", scoring.method))
        pairs.append((f"Scoring signature{of}", scoring.signature))
        pairs.append((f"Scoring cost{of}", cost))
    for variant in pruned:
        pairs.append((f"Budget of {variant.name}", variant.budget))
        pairs.append((f"Selection of {variant.name}", variant.selection))
        pairs.append((f"Recovery of {variant.name}", variant.recovery))
    # Tokens that an encoder keeps and that decoders score, if a text says which.
    models = [report.dense, *pruned]
    embedded = [
        f"{model.name} {model.embedding_rows:,} ({numbers.megabytes(model.embedding_bytes)} MB)"
        for model in models
        if report.source_text and model.embedding_rows and model.embedding_bytes
    ]
    scored = {x.name: f"{x.name} {x.output_tokens:,}" for x in models if x.output_tokens}
    differ = len({model.output_tokens for model in models}) > 1
    pairs += [
        ("Source text", _source(report.source_text)),
        ("Tokens with an embedding (float32)", "; ".join(embedded)),
        ("Target text", _source(report.target_text)),
        ("Tokens that the decoder scores", "; ".join(scored.values()) if differ else ""),
        ("Calibration data", _source(report.calibration)),
        ("Test data", _source(report.test)),
        ("Seed", str(report.seed)),
        ("Command", report.command),
        ("Created", report.created),
        ("compress", report.tool_version),
    ]
    return make_table("origin", [(name, text) for name, text in pairs if text])


def _source(source: Source | None) -> str:
    if source is None:
        return ""
    parts = [f"{source.rows:,} rows of {', '.join(source.files)}", source.read]
    return "; ".join([*filter(None, parts), f"SHA-256 {source.sha256}"])


def signatures(report: Report) -> ReportTable:
    signed = [model.quality.signatures for model in facts.models(report) if model.quality]
    pairs = [
        (facts.metric_style(metric).label, signature)
        for metric in facts.metrics(report)
        for signature in dict.fromkeys(of_model.get(metric) for of_model in signed)
        if signature
    ]
    return make_table("signatures", pairs)


def environment(report: Report) -> ReportTable:
    run, pairs = report.throughput, dict[str, str]()
    if run is not None:
        pairs = {
            "Provider": phrases.providers(run),
            "Device": run.device,
            "Timed precision": run.precision,
        }
        pairs |= {"Threads": str(run.threads), "Lengths": run.lengths}
    return make_table("environment", (pairs | report.hardware | report.versions).items())


def _by_batch(report: Report) -> list[Timing]:
    """Timings grouped by batch size, dense first in each group."""
    return sorted(facts.all_timings(report), key=lambda row: row.batch_size)


def throughput(report: Report) -> ReportTable:
    return timing_table(_by_batch(report), TASKS[report.task].counted_tokens)


def timing_table(timings: Sequence[Timing], counted: str = "") -> ReportTable:
    """Rates, latency and memory of timings; models without a speed-up are the reference."""
    rows = []
    for row in timings:
        latencies = [row.latency_ms.get(name) for name in ("p50", "p90", "p99")]
        rates = (row.sentences_per_second, row.tokens_per_second, *latencies, row.peak_memory_mib)
        gained = ("", "", "reference")
        if row.speedup is not None:
            pays = _PAYS[facts.gain(row)]
            gained = (phrases.speedup(row), numbers.fixed(row.macs_ratio, 2), pays)
        rows.append((row.variant, str(row.batch_size), *map(numbers.adaptive, rates), *gained))
    return make_table("throughput", rows, counted=counted)


def engines(report: Report) -> ReportTable:
    notes = []
    for variant in facts.pruned(report):
        best = facts.fastest(report, facts.builds(report, variant))
        if best:
            notes.append(
                f"The fastest build of {variant.name}, over the fastest dense build of any engine: "
                f"{phrases.join([phrases.over_fastest(row) for row in best])}."
            )
    return engine_table(_by_batch(report), notes)


def engine_table(timings: Sequence[Timing], notes: Sequence[str] = ()) -> ReportTable:
    """Speed-ups over dense builds; no rows where one engine was timed."""
    several = any(row.fastest is not None for row in timings)
    rows = [
        (
            row.variant,
            str(row.batch_size),
            row.engine or "",
            row.precision or "",
            numbers.adaptive(row.sentences_per_second),
            phrases.ratio(row.engine_speedup, row.engine_speedup_interval),
            phrases.ratio(row.fastest_speedup, row.fastest_speedup_interval),
            row.fastest or "",
        )
        for row in (timings if several else ())
    ]
    return make_table("engines", rows, notes)


def size(report: Report) -> ReportTable:
    def changed(text: str, now: int, before: int) -> str:
        return text if now == before else f"{text} ({numbers.change(now, before)})"

    dense, rows = report.dense, []
    for model in facts.models(report):
        if not model.in_default_engine:
            continue  # other engines run the same files, or further ones
        checkpoint, onnx = map(numbers.megabytes, (model.checkpoint_bytes, model.onnx_bytes))
        rows.append(
            (
                model.name,
                model.precision,
                phrases.kept(model, "heads"),
                phrases.kept(model, "neurons"),
                numbers.percent(model.macs_share, 1, 1),
                changed(f"{model.parameters:,}", model.parameters, dense.parameters),
                changed(checkpoint, model.checkpoint_bytes, dense.checkpoint_bytes),
                changed(onnx, model.onnx_bytes, dense.onnx_bytes),
            )
        )
    return make_table("size", rows, units=facts.units_title(report))


def units(report: Report) -> ReportTable:
    """Which heads every sublayer of every variant keeps, and how many neurons; sums per kind."""

    def cell(variant: Variant, name: str) -> str:
        if name not in variant.kept:
            return f"{variant.kept_neurons[name]:,}/{variant.neurons[name]:,}"
        heads = variant.kept[name]
        listed = " ".join(str(head) for head in sorted(heads)) or "none"
        return f"{len(heads)}/{variant.heads[name]}: {listed}"

    pruned, rows = facts.pruned(report), []
    for kind in facts.kinds(report) if pruned else ():
        rows.append((f"All {facts.kind_label(kind)}", *(phrases.kept(x, kind) for x in pruned)))
        for name in facts.layers(report.dense, kind):
            rows.append((name, *(cell(variant, name) for variant in pruned)))
    notes = [
        f"{variant.name} skips {phrases.join(variant.dropped_layers)} (counted from 0), with "
        "all of their normalizations; the layers behind them have moved up."
        for variant in pruned
        if variant.dropped_layers
    ]
    names = [Column(variant.name, numeric=False) for variant in pruned]
    return make_table("units", rows, notes, more=names, units=facts.units_title(report))
