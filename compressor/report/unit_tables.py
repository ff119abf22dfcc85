"""The report's tables of units: how many each model keeps, what they leave, and which they are."""

from __future__ import annotations

from compressor.export.engine_names import ONNXRUNTIME
from compressor.report import facts, numbers
from compressor.report.schema import Report
from compressor.report.table import Column, ReportTable, columns
from compressor.results import Variant


def size(report: Report) -> ReportTable:
    """Units per kind, multiply-adds, parameters and file sizes of every model."""
    neurons, units = facts.neuron_kinds(report), facts.units_title(report)
    shown = [(kind, _title(kind)) for kind in facts.attention_kinds(report)]
    shown.append(("heads", "All heads"))
    if neurons:
        shown += [*((kind, _title(kind)) for kind in neurons), ("neurons", "All neurons")]

    def row(model: Variant) -> tuple[str, ...]:
        same = model is report.dense
        files = [
            (model.checkpoint_bytes, report.dense.checkpoint_bytes),
            (model.onnx_bytes, report.dense.onnx_bytes),
        ]
        return (
            model.name,
            model.precision,
            *(kept(model, which) for which, _ in shown),
            macs(model),
            f"{model.parameters:,}",
            "" if same else numbers.change(model.parameters, report.dense.parameters),
            *(
                text
                for now, before in files
                for text in (numbers.megabytes(now), "" if same else numbers.change(now, before))
            ),
        )

    return ReportTable(
        key="size",
        caption=f"{units} kept of {units.lower()} before, parameters and file sizes, with the "
        "change against dense. Multiply-adds are a share of dense at the lengths of the rows, the "
        "vocabulary included. 1 MB is 1,000,000 bytes.",
        columns=columns(
            "Model, Precision",
            *(title for _, title in shown),
            *("Multiply-adds", "Parameters", "Change"),
            *("Checkpoint MB", "Change", "ONNX MB", "Change"),
        ),
        # Other engines run the same files, or further ones.
        rows=tuple(row(x) for x in facts.models(report) if x.engine == ONNXRUNTIME),
    )


def _title(kind: str) -> str:
    return facts.kind_label(kind).capitalize()


def kept(model: Variant, which: str) -> str:
    """`72/144`: units kept of units before."""
    return f"{facts.kept(model, which):,}/{facts.total(model, which):,}"


def macs(model: Variant) -> str:
    """What is left of the dense model's multiply-adds, for example `52.1%`."""
    return numbers.percent(model.macs_share, 1, 1)


def layers(report: Report) -> ReportTable:
    """Which heads every layer of every variant keeps, and how many neurons."""

    def cell(variant: Variant, name: str) -> str:
        if name not in variant.kept:
            return f"{variant.kept_neurons[name]:,}/{variant.neurons[name]:,}"
        heads = variant.kept[name]
        listed = " ".join(str(head) for head in sorted(heads)) or "none"
        return f"{len(heads)}/{variant.heads[name]}: {listed}"

    names = [name for kind in facts.kinds(report) for name in facts.layers(report.dense, kind)]
    return ReportTable(
        key="layers",
        caption="Heads kept in each layer: how many of how many, and which."
        + (" Of neurons, how many." if facts.neuron_kinds(report) else ""),
        columns=(
            *columns("Layer"),
            *(Column(variant.name, numeric=False) for variant in facts.pruned(report)),
        ),
        rows=tuple((name, *(cell(v, name) for v in facts.pruned(report))) for name in names),
    )
