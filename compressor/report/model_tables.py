"""The report's tables of what each model gains: how fast, how large, and which units it keeps."""

from __future__ import annotations

from compressor.export.precision_names import ON_DEVICE
from compressor.report import facts, numbers, phrases
from compressor.report.schema import Report
from compressor.report.table import Column, ReportTable, columns
from compressor.results import Timing, Variant
from compressor.tasks import TASKS

_PAYS: dict[facts.Gain, str] = {
    "faster": "pays",
    "same": "does not pay",
    "slower": "slower than dense",
    "unknown": "not usable",
}


def _by_batch(report: Report) -> list[Timing]:
    """Timings grouped by batch size, dense first in each group."""
    return sorted(facts.all_timings(report), key=lambda row: row.batch_size)


def throughput(report: Report) -> ReportTable:
    """Speed of every model at every batch size."""
    rows = []
    for row in _by_batch(report):
        compared = row.variant != report.dense.name
        rows.append(
            (
                row.variant,
                str(row.batch_size),
                numbers.adaptive(row.sentences_per_second),
                numbers.adaptive(row.tokens_per_second),
                *(numbers.adaptive(row.latency_ms.get(name)) for name in ("p50", "p90", "p99")),
                numbers.adaptive(row.peak_memory_mib),
                phrases.speedup(row) if compared else "",
                numbers.fixed(row.macs_ratio, 2) if compared else "",
                _PAYS[facts.gain(row)] if compared else "reference",
            )
        )
    # A device computes precisions that it has no kernels for mostly in float32.
    device = report.throughput.device if report.throughput else ""
    elsewhere = {name for names in ON_DEVICE.values() for name in names}
    elsewhere = elsewhere - set(ON_DEVICE[device]) if device in ON_DEVICE else set()
    timed = dict.fromkeys(x.precision for x in report.variants if x.in_default_engine)
    return ReportTable(
        "throughput",
        "Throughput by batch size. Latency is that of one batch; tokens are "
        f"{TASKS[report.task].counted_tokens} tokens; the speed-up has its 95% interval. The ratio "
        "of multiply-adds is dense over the model's, at the lengths that were timed.",
        columns(
            "Model, >Batch, >Sentences/s, >Tokens/s, >p50 ms, >p90 ms, >p99 ms, >Peak MiB, "
            ">Speed-up, >Ratio of multiply-adds, Result"
        ),
        tuple(rows),
        title="Throughput",
        notes=tuple(
            f"{name} is not for a {device}, which computes most of it in float32: its speed here "
            "says nothing."
            for name in timed
            if name in elsewhere
        ),
    )


def engines(report: Report) -> ReportTable:
    """What models gain over dense ones in the same engine and in the fastest."""
    timed = _by_batch(report)
    if all(row.fastest is None for row in timed):
        timed = []
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
        gains = [
            f"{phrases.ratio(row.fastest_speedup, row.fastest_speedup_interval)} at batch {size} "
            f"({row.variant} over {row.fastest})"
            for size, row in sorted(best.items())
        ]
        if gains:
            notes.append(
                f"The fastest build of {variant.name}, over the fastest dense build of any engine: "
                f"{phrases.join(gains)}."
            )
    return ReportTable(
        "engines",
        "Speed-up by engine, with 95% intervals: over the dense model in the same engine, "
        "and over the fastest dense build of any engine at that batch size.",
        columns("Model", "Batch", "Engine", "Precision", "Sentences/s", "Same engine",
                "Fastest dense", "Which is"),
        tuple(rows),
        title="Engines",
        notes=tuple(notes),
    )  # fmt: skip


def shapes(report: Report) -> ReportTable:
    """The shape that was timed at each batch size."""
    run = report.throughput
    rows = [
        (
            row.variant,
            str(row.batch_size),
            numbers.fixed(row.source_tokens, 1),
            numbers.fixed(row.padded_source_tokens, 1),
            numbers.fixed(row.target_tokens, 1),
            str(row.runs),
            row.precision or (run.precision if run else ""),
            row.provider or (run.provider if run else ""),
        )
        for row in _by_batch(report)
    ]
    return ReportTable(
        "shapes",
        "Shapes that were timed (mean tokens per row).",
        columns(
            "Model, >Batch, >Source tokens, >With padding, >Generated tokens, >Runs, Precision, "
            "Provider"
        ),
        tuple(rows),
        title="Shapes",
        folded=True,
    )


def size(report: Report) -> ReportTable:
    """Units, multiply-adds, parameters and file sizes of every model."""

    def changed(text: str, now: int, before: int) -> str:
        return text if now == before else f"{text} ({numbers.change(now, before)})"

    neurons, dense = bool(facts.neuron_kinds(report)), report.dense
    rows = []
    for model in facts.models(report):
        if not model.in_default_engine:
            continue  # other engines run the same files, or further ones
        checkpoint, onnx = map(numbers.megabytes, (model.checkpoint_bytes, model.onnx_bytes))
        rows.append(
            (
                model.name,
                model.precision,
                phrases.kept(model, "heads"),
                *([phrases.kept(model, "neurons")] if neurons else []),
                phrases.macs(model),
                changed(f"{model.parameters:,}", model.parameters, dense.parameters),
                changed(checkpoint, model.checkpoint_bytes, dense.checkpoint_bytes),
                changed(onnx, model.onnx_bytes, dense.onnx_bytes),
            )
        )
    return ReportTable(
        "size",
        f"{facts.units_title(report)} kept, parameters and file sizes, with the change "
        "against dense. Multiply-adds are a share of dense at the lengths of the rows, the "
        "vocabulary included. 1 MB is 1,000,000 bytes.",
        columns(
            f"Model, Precision, >Heads, {'>Neurons, ' if neurons else ''}>Multiply-adds, "
            ">Parameters, >Checkpoint MB, >ONNX MB"
        ),
        tuple(rows),
        title="Size",
    )


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
    return ReportTable(
        "units",
        "How many units each sublayer keeps, and which heads; one without any adds its "
        "output bias alone.",
        (*columns("Sublayer"), *(Column(x.name, numeric=False) for x in pruned)),
        tuple(rows),
        title=f"{facts.units_title(report)} kept",
        notes=tuple(
            f"{variant.name} skips {phrases.join(variant.dropped_layers)} (counted from 0), with "
            "all of their normalizations; the layers behind them have moved up."
            for variant in pruned
            if variant.dropped_layers
        ),
        folded=True,
    )
