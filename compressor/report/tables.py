"""The report's tables, from its numbers to cells of text; every format shows these.

A cell says nothing that another table says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from compressor.export.precision_names import ON_DEVICE
from compressor.report import facts, numbers, phrases, searches
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
        rows.append(tuple(cells))
    timed = facts.timings(report, dense.name)
    for row in {x.batch_size: x for x in timed[:1] + timed[-1:]}.values():
        cells = [f"Latency at batch {row.batch_size} (ms)"]
        cells.append(numbers.adaptive(row.latency_ms.get("p50")))
        for build in builds:
            # The median, and `1.16 [1.14, 1.18] times as fast` or `0.99 [0.97, 1.01], no …`.
            latency = gain = numbers.ABSENT
            for other in facts.timings(report, build.name):
                if other.batch_size == row.batch_size:
                    latency = numbers.adaptive(other.latency_ms.get("p50"))
                    gain = f"{phrases.speedup(other)}{_FASTER[facts.gain(other)]}"
                    break
            cells += [latency, gain]
        rows.append(tuple(cells))
    cells = ["Size (ONNX MB)", numbers.megabytes(dense.onnx_bytes)]
    for build in builds:
        cells.append(numbers.megabytes(build.onnx_bytes))
        cells.append(numbers.change(build.onnx_bytes, dense.onnx_bytes))
    rows.append(tuple(cells))
    return make_table("conclusion", rows, more=list(map(Column, titles)))


def samples(report: Report) -> ReportTable | None:
    """A few test rows with the answers of dense and of the most important variant."""
    variant = facts.headline(report)
    models = [report.dense, *([] if variant is None else [variant])]
    if not report.samples or not all(model.samples for model in models):
        return None

    def short(text: str) -> str:
        """A long number with four digits; other texts as they are."""
        return f"{float(text):.4g}" if re.fullmatch(r"-?\d+\.\d{4,}(?:e-?\d+)?", text) else text

    rows = []
    answers = zip(*(model.samples for model in models), strict=True)
    for row, both in zip(report.samples, answers, strict=False):
        rows.append((" / ".join(row.texts), *map(short, (row.reference, *both))))
    names = [Column(model.name, numeric=False) for model in models]
    return make_table("samples", rows, more=names, count=len(report.samples))


def gate(report: Report) -> ReportTable:
    rows = [(x.variant, x.rule, phrases.outcome_result(x), x.message) for x in report.gate]
    return make_table("gate", rows)


def baseline(report: Report) -> ReportTable:
    rows = []
    for change in report.changes:
        both = (change.before, change.after)
        values = (numbers.fixed(value, 0 if abs(value) >= 1e4 else 3) for value in both)
        bounds = "" if change.interval is None else numbers.interval(change.interval, 3)
        result = phrases.change_result(change) + (f" ({change.note})" if change.note else "")
        rows.append((change.variant, change.what, *values, bounds, result))
    return make_table("baseline", rows)


def quality(report: Report) -> ReportTable:
    """Every metric of every model with its difference from dense."""
    metrics, measured = facts.metrics(report), report.dense.quality
    counted = facts.metric_style(metrics[0]).counted if metrics else "rows"
    of = f", means over {measured.rows:,} {counted}" if measured and counted != "rows" else ""
    default_of: dict[str, list[str]] = {}  # default precision -> models that come in several
    for variant in facts.pruned(report):
        if len(facts.precisions(report, variant)) > 1:
            precision = facts.default_build(report, variant).precision
            default_of.setdefault(precision, []).append(variant.name)
    rows = (
        row
        for metric in metrics
        for model in facts.models(report)
        for row in _quality_rows(report, model, metric)
    )
    notes = [
        f"Unless a precision is named, {phrases.join(names)} "
        f"{'runs' if len(names) == 1 else 'run'} in {precision}."
        for precision, names in default_of.items()
    ]
    return make_table("quality", rows, notes, of=of)


def _quality_rows(report: Report, model: Variant, metric: str) -> Iterator[tuple[str, ...]]:
    """A row against dense, and one against the float32 model for another precision of it."""
    style, compared = facts.metric_style(metric), facts.comparison(model, metric)
    score = facts.value(model, metric)
    if score is None and compared is not None:
        score = compared.pruned
    start = (model.name, style.title, style.score(score))
    against = [(model.base, x) for x in model.base_comparisons if x.metric == metric]
    if model is report.dense:
        yield (*start, "", "", "", "", "reference")
    elif compared is None:
        missing = "not measured" if score is None else "not compared"
        yield (*start, "", *[numbers.ABSENT] * 3, missing)
    else:
        against.insert(0, (report.dense.name, compared))
    for name, compared in against:
        difference = style.difference(compared.difference), style.interval(compared.interval)
        p, judgment = numbers.p_value(compared.p_value), facts.judge(compared)
        yield (*start, name, *difference, p, facts.JUDGMENT_WORDS[judgment])


def checks(report: Report) -> ReportTable:
    rows = []
    for model in facts.models(report):
        for check in model.checks:
            values = f"{check.largest_difference:.2e}", f"{check.tolerance:.1e}"
            result = "within" if check.is_met else "EXCEEDED"
            rows.append((model.name, check.name, *values, result, check.detail))
    return make_table("checks", rows)


def origin(report: Report) -> ReportTable:
    """The model, the method, the data and the run, as names and values."""
    pairs = [
        ("Model", report.model),
        ("Revision", report.revision or "not recorded"),
        ("Architecture", report.model_type),
        ("Task", report.task),
    ]
    pruned = facts.pruned(report)
    scorings = [(f" of {variant.name}", facts.scoring(report, variant)) for variant in pruned]
    if all(variant.scoring is None for variant in pruned):
        scorings = [("", report.scoring)]
    for of, scoring in scorings:
        if scoring is None:
            pairs.append((f"Scores{of}", "none"))
            continue
        cost = ", ".join(f"{k} {numbers.adaptive(v)}" for k, v in scoring.cost.items())
        pairs.append((f"Scoring method{of}", scoring.method))
        pairs.append((f"Scoring signature{of}", scoring.signature))
        pairs.append((f"Scoring cost{of}", cost or "not recorded"))
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
    return make_table("origin", pairs)


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
    return make_table("signatures", pairs)


def environment(report: Report) -> ReportTable:
    """Provider, hardware and versions of the measurements."""
    run, pairs = report.throughput, list[tuple[str, str]]()
    if run is not None:
        pairs += [("Provider", run.provider), ("Device", run.device)]
        pairs += [("Timed precision", run.precision), ("Threads", str(run.threads))]
        pairs.append(("Lengths", run.lengths))
    return make_table("environment", [*pairs, *report.hardware.items(), *report.versions.items()])


def _by_batch(report: Report) -> list[Timing]:
    """Timings grouped by batch size, dense first in each group."""
    return sorted(facts.all_timings(report), key=lambda row: row.batch_size)


def throughput(report: Report) -> ReportTable:
    """Speed of every model at every batch size."""
    rows = []
    for row in _by_batch(report):
        latencies = [row.latency_ms.get(name) for name in ("p50", "p90", "p99")]
        rates = (row.sentences_per_second, row.tokens_per_second, *latencies, row.peak_memory_mib)
        gained = ("", "", "reference")
        if row.variant != report.dense.name:
            pays = _PAYS[facts.gain(row)]
            gained = (phrases.speedup(row), numbers.fixed(row.macs_ratio, 2), pays)
        rows.append((row.variant, str(row.batch_size), *map(numbers.adaptive, rates), *gained))
    # A device computes precisions that it has no kernels for mostly in float32.
    device = report.throughput.device if report.throughput else ""
    elsewhere = {name for names in ON_DEVICE.values() for name in names}
    elsewhere = elsewhere - set(ON_DEVICE[device]) if device in ON_DEVICE else set()
    timed = dict.fromkeys(x.precision for x in report.variants if x.in_default_engine)
    notes = [
        f"{name} is not for a {device}, which computes most of it in float32: its speed here "
        "says nothing."
        for name in timed
        if name in elsewhere
    ]
    return make_table("throughput", rows, notes, counted=TASKS[report.task].counted_tokens)


def engines(report: Report) -> ReportTable:
    """What models gain over dense ones in the same engine and in the fastest."""
    timed = _by_batch(report)
    timed = timed if any(row.fastest is not None for row in timed) else []
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
        for row in timed
    ]
    notes = []
    for variant in facts.pruned(report):
        names = {build.name for build in facts.builds(report, variant)}
        gained = [row for row in timed if row.variant in names and row.fastest_speedup is not None]
        gained.sort(key=lambda row: row.sentences_per_second)
        best = {row.batch_size: row for row in gained}
        gains = [phrases.over_fastest(row) for _, row in sorted(best.items())]
        if gains:
            notes.append(
                f"The fastest build of {variant.name}, over the fastest dense build of any engine: "
                f"{phrases.join(gains)}."
            )
    return make_table("engines", rows, notes)


def shapes(report: Report) -> ReportTable:
    """The shape that was timed at each batch size."""
    run, rows = report.throughput, []
    for row in _by_batch(report):
        tokens = (row.source_tokens, row.padded_source_tokens, row.target_tokens)
        shape = (str(row.batch_size), *(numbers.fixed(x, 1) for x in tokens), str(row.runs))
        precision = row.precision or (run.precision if run else "")
        provider = row.provider or (run.provider if run else "")
        rows.append((row.variant, *shape, precision, provider))
    return make_table("shapes", rows)


def size(report: Report) -> ReportTable:
    """Units, multiply-adds, parameters and file sizes of every model."""

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
                phrases.macs(model),
                changed(f"{model.parameters:,}", model.parameters, dense.parameters),
                changed(checkpoint, model.checkpoint_bytes, dense.checkpoint_bytes),
                changed(onnx, model.onnx_bytes, dense.onnx_bytes),
            )
        )
    left_out = () if facts.shows_neurons(report) else ("Neurons",)
    return make_table("size", rows, left_out=left_out, units=facts.units_title(report))


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
