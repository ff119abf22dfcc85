"""The report's tables of units: how many each model keeps, what they leave, and which they are."""

from __future__ import annotations

from compressor.report import facts, numbers, phrases
from compressor.report.schema import Report
from compressor.report.table import Column, ReportTable, columns
from compressor.results import Variant


def size(report: Report) -> ReportTable:
    """Units, multiply-adds, parameters and file sizes of every model."""

    def changed(text: str, now: int, before: int) -> str:
        return text if now == before else f"{text} ({numbers.change(now, before)})"

    def row(model: Variant) -> tuple[str, ...]:
        dense = report.dense
        files = [
            (model.checkpoint_bytes, dense.checkpoint_bytes), (model.onnx_bytes, dense.onnx_bytes)
        ]  # fmt: skip
        return (
            model.name,
            model.precision,
            kept(model, "heads"),
            *([kept(model, "neurons")] if neurons else []),
            macs(model),
            changed(f"{model.parameters:,}", model.parameters, dense.parameters),
            *(changed(numbers.megabytes(now), now, before) for now, before in files),
        )

    neurons = bool(facts.neuron_kinds(report))
    return ReportTable(
        key="size",
        caption=f"{facts.units_title(report)} kept, parameters and file sizes, with the change "
        "against dense. Multiply-adds are a share of dense at the lengths of the rows, the "
        "vocabulary included. 1 MB is 1,000,000 bytes.",
        columns=columns(
            "Model, Precision",
            "Heads",
            *(["Neurons"] if neurons else []),
            *("Multiply-adds", "Parameters", "Checkpoint MB", "ONNX MB"),
        ),
        # Other engines run the same files, or further ones.
        rows=tuple(row(x) for x in facts.models(report) if x.in_default_engine),
        title="Size",
    )


def kept(model: Variant, which: str) -> str:
    """`72/144`: units kept of units before."""
    return f"{facts.kept(model, which):,}/{facts.total(model, which):,}"


def macs(model: Variant) -> str:
    """What is left of the dense model's multiply-adds, for example `52.1%`."""
    return numbers.percent(model.macs_share, 1, 1)


def units(report: Report) -> ReportTable:
    """Which heads every sublayer of every variant keeps, and how many neurons; sums per kind."""

    def cell(variant: Variant, name: str) -> str:
        if name not in variant.kept:
            return f"{variant.kept_neurons[name]:,}/{variant.neurons[name]:,}"
        heads = variant.kept[name]
        listed = " ".join(str(head) for head in sorted(heads)) or "none"
        return f"{len(heads)}/{variant.heads[name]}: {listed}"

    pruned, rows = facts.pruned(report), []
    for kind in facts.kinds(report):
        rows.append((f"All {facts.kind_label(kind)}", *(kept(x, kind) for x in pruned)))
        for name in facts.layers(report.dense, kind):
            rows.append((name, *(cell(variant, name) for variant in pruned)))
    notes = [
        f"{variant.name} skips {phrases.join(variant.dropped_layers)} (counted from 0), with all "
        "of their normalizations; the layers behind them have moved up."
        for variant in pruned
        if variant.dropped_layers
    ]
    return ReportTable(
        key="units",
        caption="How many units each sublayer keeps, and which heads; one without any adds its "
        "output bias alone.",
        columns=columns("Sublayer") + tuple(Column(x.name, numeric=False) for x in pruned),
        rows=tuple(rows) if pruned else (),
        title=f"{facts.units_title(report)} kept",
        notes=tuple(notes),
        folded=True,
    )
