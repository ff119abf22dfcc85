"""Each head removed alone: how much does the metric change, and is the change significant?

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2 and table 1,
with a paired test per head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from compressor.importance.ablation_runs import outputs_without_units
from compressor.pipeline.inputs import DataRows
from compressor.report.facts import MetricStyle, kind_label
from compressor.report.plots import INK
from compressor.report.table import ReportTable
from compressor.study import quality as q
from compressor.study.inputs import StudiedModel
from compressor.study.options import HeadsStudy
from compressor.study.output import Result, by_kind, head_panels, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Layers = dict[str, list[q.Effect]]  # layer name -> the effect of removing each of its heads


def study(model: StudiedModel, rows: DataRows, options: HeadsStudy) -> Result:
    """Remove every head alone and compare with the dense model."""
    quality = q.MeasuredQuality(model, rows, options.evaluation)
    style, progress = quality.style, model.progress
    heads = [(layer.name, head) for layer in model.layers for head in range(layer.units)]
    progress.message(f"removing each of {len(heads)} heads alone …")
    with model.scoring(quality.batches) as scoring:
        _, outputs = outputs_without_units(scoring, model.layers, options.evaluation.num_beams)
    effects = []
    for done, (name, head) in enumerate(heads, 1):
        effects.append({"head": head, **quality.effect(outputs[name, head])})
        progress.update("heads compared", done, len(heads))
    tests = q.corrected(effects)  # for the number of all heads together
    layers: Layers = {layer.name: [] for layer in model.layers}
    for (name, _), test in zip(heads, tests, strict=True):
        layers[name].append(test)
    data = {**quality.facts(), **q.count_significant(tests), "layers": layers}
    free = sum(test["difference"] >= 0 for test in tests)
    return Result(
        title=f"Each head of {model.checkpoint.name} removed alone",
        data=data,
        sentences=[
            f"All heads: {style.title} {style.score(data['dense'])} on {len(quality.dense)} rows.",
            f"Removing one head: {free} of {len(tests)} heads cost nothing.",
            *q.significance_sentences(data, "heads"),
        ],
        tables=[
            _grid(kind, {name: layers[name] for name in names}, style)
            for kind, names in by_kind(layers).items()
        ],
        details=[
            table(
                "Every head: 95% interval of the change by paired bootstrap; two-sided p-values "
                "without correction, after Benjamini-Hochberg's and after Holm's.",
                "layer, head, change, 95% interval, p, p (BH), p (Holm)",
                [
                    (name, str(head), *q.cells(test, style))
                    for (name, head), test in zip(heads, tests, strict=True)
                ],
            )
        ],
        figure=_figure(layers, f"change in {q.unit_of(style)}"),
    )


def _grid(kind: str, layers: Layers, style: MetricStyle) -> ReportTable:
    """The change without each head: a row per layer, a column per head."""
    width = max(map(len, layers.values()))
    rows = []
    for name, tests in layers.items():
        changes = [style.difference(test["difference"]) + q.mark(test) for test in tests]
        rows.append((name.rpartition(".")[2], *changes, *[""] * (width - len(changes))))
    titles = ", ".join(["layer", *(f"head {head}" for head in range(width))])
    caption = f"Change in {style.title} without one head of {kind_label(kind)}; {q.MARKS}."
    return table(caption, titles, rows)


def _figure(layers: Layers, label: str) -> Figure:
    """The change without each head, red below and blue above zero, significant ones dotted."""
    figure, panels = head_panels({name: len(tests) for name, tests in layers.items()})
    # The same range to both sides, so that white is no change; any range where all are zero.
    limit = max(abs(test["difference"]) for tests in layers.values() for test in tests) or 1.0
    for kind, names in by_kind(layers).items():
        shape = len(names), max(len(layers[name]) for name in names)
        changes = np.ma.masked_all(shape)  # [layers, heads]; masked: no such head
        dots = []
        for row, name in enumerate(names):
            for test in layers[name]:
                changes[row, test["head"]] = test["difference"]
                if q.mark(test):
                    dots.append((test["head"], row))
        image = panels[kind].imshow(changes, cmap="RdBu", vmin=-limit, vmax=limit, aspect="equal")
        if dots:
            panels[kind].scatter([x for x, _ in dots], [y for _, y in dots], s=9, color=INK)
    # The color bar of the last panel is that of all, since they have one range of values.
    figure.colorbar(image, ax=list(panels.values()), label=label, shrink=0.9)
    return figure
