"""The report's lists of names and values: what was made of what, how, and where."""

from __future__ import annotations

from compressor.report import facts, numbers
from compressor.report.schema import Report
from compressor.report.table import ReportTable, named_values
from compressor.results import Ranking, Source

Pairs = list[tuple[str, str]]


def origin(report: Report) -> ReportTable:
    """The model, the method, the data and the run."""
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
    pairs += [*_vocabularies(report)]
    pairs += [
        ("Calibration data", _source(report.calibration)),
        ("Test data", _source(report.test)),
        ("Seed", str(report.seed)),
        ("Command", report.command),
        ("Created", report.created),
        ("compress", report.tool_version),
    ]
    return named_values("origin", "Model, method and data.", pairs, "How it was made")


def _scoring(scoring: Ranking | None, of: str) -> Pairs:
    if scoring is None:
        return [(f"Scores{of}", "none")]
    cost = ", ".join(f"{k} {numbers.adaptive(v)}" for k, v in scoring.cost.items())
    return [
        (f"Scoring method{of}", scoring.method),
        (f"Scoring signature{of}", scoring.signature),
        (f"Scoring cost{of}", cost or "not recorded"),
    ]


def _vocabularies(report: Report) -> Pairs:
    """Tokens that an encoder keeps and that decoders score, where a text says which."""
    models, pairs = [report.dense, *facts.pruned(report)], []
    if report.source_text is not None:
        embedded = "; ".join(
            f"{model.name} {model.embedding_rows:,} ({numbers.megabytes(model.embedding_bytes)} MB)"
            for model in models
            if model.embedding_rows is not None and model.embedding_bytes is not None
        )
        pairs.append(("Source text", _source(report.source_text)))
        pairs.append(("Tokens with an embedding (float32)", embedded))
    if report.target_text is not None:
        pairs.append(("Target text", _source(report.target_text)))
    scored = {model.name: model.output_tokens for model in models if model.output_tokens}
    if len(set(scored.values())) > 1:
        text = "; ".join(f"{name} {count:,}" for name, count in scored.items())
        pairs.append(("Tokens that the decoder scores", text))
    return pairs


def _source(source: Source | None) -> str:
    if source is None:
        return "none"
    return f"{source.rows:,} rows of {', '.join(source.files)}; SHA-256 {source.sha256}"


def signatures(report: Report) -> ReportTable:
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
    return named_values("signatures", "Signatures of the metrics.", pairs, "Signatures", True)


def environment(report: Report) -> ReportTable:
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
    where = "Where the measurements were taken."
    return named_values("environment", where, pairs, "Environment", True)
