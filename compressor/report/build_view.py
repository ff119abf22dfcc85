"""From what is stored to what is shown: `build_view` makes the one view that all formats show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from compressor.model.sublayers import TOKEN_KIND
from compressor.report import facts, gains, numbers, sentences
from compressor.report.next_step import next_step
from compressor.report.plot_series import plots
from compressor.report.schema import Report
from compressor.report.search_section import search_section
from compressor.report.view import (
    BuildSummary,
    CheckRow,
    Difference,
    Fact,
    Headline,
    LengthsRow,
    LengthsSection,
    QualityRow,
    QualitySection,
    ReportView,
    SampleAnswers,
    SampleRow,
    SizeRow,
    SpeedRow,
    SpeedSection,
    UnitsRow,
    UnitsSection,
)
from compressor.steps.results import Comparison, Source, Timing, Variant
from compressor.tasks import TASKS

HERE = Path()


def build_view(report: Report, directory: Path = HERE) -> ReportView:
    """Work out once all that is shown of a report.

    Args:
        report: The report as it is stored.
        directory: The directory that holds it, as seen from where suggested commands are typed.
    """
    headline, search = _headline(report), search_section(report)
    floors, few_rows = sentences.floors(report), sentences.few_rows(headline)
    return ReportView(
        report=report,
        title=facts.model_name(report),
        conclusion=sentences.conclusion(report, headline),
        gate_sentence=sentences.gate_sentence(report),
        verdict=facts.gate_verdict(report),
        warnings=(*floors, *few_rows, *search.warnings, *_doubts(report)),
        floors=tuple(floors),
        few_rows=tuple(few_rows),
        headline=headline,
        delivered=tuple(variant.name for variant in facts.delivered(report)),
        measured=sentences.measured_on(report),
        next_step=next_step(report, directory),
        samples=_samples(report),
        gate=tuple(report.gate),
        changes=tuple(report.changes),
        quality=_quality(report),
        speed=_speed(report),
        sizes=tuple(_size(model) for model in facts.models(report)),
        search=search,
        units=_units(report),
        checks=tuple(CheckRow(m.name, check) for m in facts.models(report) for check in m.checks),
        provenance=tuple(_provenance(report)),
        signatures=tuple(_signatures(report)),
        environment=tuple(_environment(report)),
        plots=plots(report),
    )


# --- what leads the page


def _headline(report: Report) -> Headline | None:
    variant, metric = facts.headline(report), facts.primary_metric(report)
    if variant is None:
        return None
    sizes, alone = gains.batch_sizes(report), facts.dense_alone(report, variant)
    return Headline(
        metric=None if metric is None else facts.metric_style(metric),
        batch_sizes=tuple(dict.fromkeys(sizes[:1] + sizes[-1:])),
        dense=_summary(report, report.dense),
        build=_summary(report, variant),
        dense_alone=None if alone is None else _summary(report, alone),
        over_fastest=tuple(gains.gains_over_fastest(report, variant)),
    )


def _summary(report: Report, build: Variant) -> BuildSummary:
    metric, compared = facts.primary_metric(report), facts.main_comparison(report, build)
    made = None
    if compared is not None:
        made = difference(report, build, compared, report.dense.name)
    return BuildSummary(
        name=build.name,
        precision=build.precision,
        score=None if metric is None else facts.value(build, metric),
        difference=made,
        speeds=tuple(_speed_row(report, row) for row in gains.timings(report, build.name)),
        onnx_bytes=build.onnx_bytes,
    )


def difference(report: Report, build: Variant, compared: Comparison, against: str) -> Difference:
    """A stored comparison with what follows from it."""
    rows = facts.test_rows(report, build)
    return Difference(
        style=facts.metric_style(compared.metric),
        against=against,
        score=compared.pruned,
        difference=compared.difference,
        interval=facts.interval_of(compared, rows),
        p_value=compared.p_value,
        judgment=facts.judge(compared, rows),
        rows=rows,
        has_few_rows=facts.are_few(compared, rows),
        is_at_floor=compared.at_floor,
    )


def _doubts(report: Report) -> Iterator[str]:
    """Warnings about the test rows, the timings, and builds that are not the default."""
    if report.test is not None and report.shared_rows:
        yield f"{sentences.shared_rows(report.shared_rows, report.test.rows)}."
    yield from sentences.time_beside_products(report)
    yield from sentences.uncertain_speedups(report)
    for variant in facts.pruned(report):
        for build in facts.precisions(report, variant):
            text = sentences.refused_build(report, build, _summary(report, build))
            if build.base and text:
                yield text


def _samples(report: Report) -> SampleAnswers | None:
    """Sample rows with the answers of dense and of the most important variant."""
    variant = facts.headline(report)
    models = [report.dense, *([] if variant is None else [variant])]
    if not report.samples or not all(model.samples for model in models):
        return None
    answers = zip(*(model.samples for model in models), strict=False)
    rows = [
        SampleRow(tuple(row.texts), row.reference, both)
        for row, both in zip(report.samples, answers, strict=False)
    ]
    return SampleAnswers(tuple(model.name for model in models), tuple(rows))


# --- quality, speed and size


def _quality(report: Report) -> QualitySection:
    metrics, measured = facts.metrics(report), report.dense.quality
    counted = facts.metric_style(metrics[0]).counted if metrics else "rows"
    notes = [
        f"Unless a precision is named, {variant.name} runs in "
        f"{facts.default_build(report, variant).precision}."
        for variant in facts.pruned(report)
        if len(facts.precisions(report, variant)) > 1
    ]
    rows = [
        row
        for metric in metrics
        for model in facts.models(report)
        for row in _quality_rows(report, metric, model)
    ]
    means = f"{measured.rows:,} {counted}" if measured and counted != "rows" else ""
    return QualitySection(tuple(rows), tuple(notes), means, _lengths(report))


def _lengths(report: Report) -> LengthsSection | None:
    """How every build translates long sources, and how long its translations are."""
    measured, metric = report.dense.quality, facts.primary_metric(report)
    if measured is None or measured.long_sources is None or metric is None:
        return None
    rows = [
        LengthsRow(
            build=model.name,
            score=facts.value(model, metric),
            long_score=long.score,
            other_lengths=quality.other_lengths,
        )
        for model in facts.models(report)
        if (quality := model.quality) and (long := quality.long_sources)
    ]
    of_dense = measured.long_sources
    style = facts.metric_style(metric)
    return LengthsSection(style, of_dense.words, of_dense.rows, tuple(rows))


def _quality_rows(report: Report, metric: str, model: Variant) -> list[QualityRow]:
    """A model's differences from dense, and of another precision from the float32 model."""
    style, score = facts.metric_style(metric), facts.value(model, metric)
    against = [(report.dense.name, x) for x in model.comparisons if x.metric == metric]
    against += [(model.base, x) for x in model.base_comparisons if x.metric == metric]
    if not against:
        return [QualityRow(model.name, style, score, None, model is report.dense)]
    return [
        QualityRow(model.name, style, score, difference(report, model, compared, name), False)
        for name, compared in against
    ]


def _speed(report: Report) -> SpeedSection:
    timed = sorted(gains.all_timings(report), key=lambda row: row.batch_size)
    notes = []
    for variant in facts.pruned(report):
        if best := gains.fastest(report, facts.builds(report, variant)):
            made = [gains.gain_over_fastest(report, row) for row in best]
            texts = [sentences.gain_with_names(gain) for gain in made if gain]
            notes.append(
                f"The fastest build of {variant.name}, over the fastest dense build of any engine: "
                f"{numbers.join(texts)}."
            )
    return SpeedSection(
        rows=tuple(_speed_row(report, row) for row in timed),
        counted_tokens=TASKS[report.task].counted_tokens,
        several_engines=any(row.fastest is not None for row in timed),
        notes=tuple(notes),
    )


def _speed_row(report: Report, row: Timing) -> SpeedRow:
    gain = None if row.speedup is None else gains.gain(row)
    return SpeedRow(row, gain, gains.gain_over_fastest(report, row))


def _size(model: Variant) -> SizeRow:
    return SizeRow(
        build=model.name,
        precision=model.precision,
        heads=facts.kept_of(model, "heads"),
        neurons=facts.kept_of(model, "neurons"),
        tokens=facts.kept_of(model, "tokens"),
        macs_share=model.macs_share,
        parameters=model.parameters,
        checkpoint_bytes=model.checkpoint_bytes,
        onnx_bytes=model.onnx_bytes,
        in_default_engine=model.in_default_engine,
    )


def _units(report: Report) -> UnitsSection:
    """The units left in every sublayer of every pruned model; those of a kind come first."""
    pruned, rows = facts.pruned(report), []
    for kind in facts.kinds(report) if pruned else ():
        sums = tuple(facts.kept_of(model, kind) for model in pruned)
        all_of = f"All {facts.kind_label(kind)}"
        rows.append(UnitsRow("Tokens handed on, mean" if kind == TOKEN_KIND else all_of, sums))
        for name in facts.layers(report.dense, kind):
            rows.append(UnitsRow(name, tuple(facts.units_of(model, name) for model in pruned)))
    notes = [
        f"{variant.name} skips {numbers.join(variant.dropped_layers)} (counted from 0), with "
        "all of their normalizations; the layers behind them have moved up."
        for variant in pruned
        if variant.dropped_layers
    ]
    names = tuple(model.name for model in pruned)
    return UnitsSection(
        title=facts.units_title(report),
        shows_tokens=facts.shows(report, "tokens"),
        models=names,
        rows=tuple(rows),
        notes=tuple(notes),
    )


# --- provenance


def _provenance(report: Report) -> Iterator[Fact]:
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
    pairs += _tokens(report)
    pairs += [
        ("Calibration data", _source(report.calibration)),
        ("Test data", _source(report.test)),
        ("Seed", str(report.seed)),
        ("Command", report.command),
        ("Created", report.created),
        ("compress", report.tool_version),
    ]
    return (Fact(name, text) for name, text in pairs if text)


def _tokens(report: Report) -> list[tuple[str, str | None]]:
    """Tokens that an encoder keeps and that decoders score, if a text says which."""
    models = [report.dense, *facts.pruned(report)]
    embedded = [
        f"{model.name} {model.embedding_rows:,} ({numbers.megabytes(model.embedding_bytes)} MB)"
        for model in models
        if report.source_text and model.embedding_rows and model.embedding_bytes
    ]
    gone = [
        f"{model.name} {(whole - left) // 4:,} weights, {numbers.megabytes(whole - left)} MB"
        for model in models[1:]
        if report.source_text and (whole := report.dense.embedding_bytes)
        if (left := model.embedding_bytes) is not None
    ]
    scored = {x.name: f"{x.name} {x.output_tokens:,}" for x in models if x.output_tokens}
    differ = len({model.output_tokens for model in models}) > 1
    return [
        ("Source text", _source(report.source_text)),
        ("Tokens with an embedding (float32)", "; ".join(embedded)),
        ("Left out with tokens (float32)", "; ".join(gone)),
        ("Target text", _source(report.target_text)),
        ("Tokens that the decoder scores", "; ".join(scored.values()) if differ else ""),
        ("Candidates of output tokens", _candidates(models)),
    ]


def _candidates(models: Sequence[Variant]) -> str:
    """The candidates of pruned models, which all have the same, and what they miss."""
    found = next((model.candidates for model in models if model.candidates), None)
    if found is None:
        return ""
    learned = f"{found.per_token:,} a source token and the {found.frequent:,} most frequent ones, "
    learned += f"by {found.pairs:,} answers of the dense model"
    if found.missed_by_row is None or found.missed_by_batch is None:
        return f"{learned}; what they miss is not known, since the text is too short"
    return (
        f"{learned}; of the tokens of {found.rows:,} more {found.missed_by_row:.2%} are no "
        f"candidates of the text alone, which has {found.per_row:,.0f} on average, and "
        f"{found.missed_by_batch:.2%} none of batches of 16, which have {found.per_batch:,.0f}"
    )


def _source(source: Source | None) -> str:
    if source is None:
        return ""
    parts = [f"{source.rows:,} rows of {', '.join(source.files)}", source.read]
    return "; ".join([*filter(None, parts), f"SHA-256 {source.sha256}"])


def _signatures(report: Report) -> Iterator[Fact]:
    signed = [model.quality.signatures for model in facts.models(report) if model.quality]
    for metric in facts.metrics(report):
        for signature in dict.fromkeys(of_model.get(metric) for of_model in signed):
            if signature:
                yield Fact(facts.metric_style(metric).label, signature)


def _environment(report: Report) -> Iterator[Fact]:
    run, pairs = report.throughput, dict[str, str]()
    if run is not None:
        pairs = {
            "Provider": sentences.providers(run),
            "Device": run.device,
            "Timed precision": run.precision,
            "Threads": str(run.threads),
            "Lengths": run.lengths,
        }
    return (Fact(*pair) for pair in (pairs | report.hardware | report.versions).items())
