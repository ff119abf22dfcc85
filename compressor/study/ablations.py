"""Heads removed alone, and layers that keep a single one: what does each cost?

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", sections 3.2 and 3.3 and
tables 1 to 3, with a paired test for each head and layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compressor.errors import UsageError
from compressor.importance.ablation_runs import losses_alone, outputs_without_units
from compressor.model.sublayers import Mask
from compressor.pipeline.inputs import DataRows
from compressor.report.facts import MetricStyle, kind_label
from compressor.report.plots import COLORS, DENSE, INK, MARKERS
from compressor.report.table import Column
from compressor.study import quality as q
from compressor.study.options import HeadsStudy, LayersStudy
from compressor.study.output import Result, by_kind, head_panels, legend, panels, table
from compressor.study.run import StudiedModel


def heads(model: StudiedModel, rows: DataRows, options: HeadsStudy) -> Result:
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
    tests, counts, significance = quality.corrected(effects, "heads")  # all heads together
    layers: dict[str, list[q.Effect]] = {layer.name: [] for layer in model.layers}
    for (name, _), test in zip(heads, tests, strict=True):
        layers[name].append(test)
    grids = []  # a row per layer, a column per head
    for kind, names in by_kind(layers).items():
        width = max(len(layers[name]) for name in names)
        cells = []
        for name in names:
            changes = [style.difference(x["difference"]) + q.mark(x) for x in layers[name]]
            padding = [""] * (width - len(changes))
            cells.append((name.rpartition(".")[2], *changes, *padding))
        titles = [Column(f"head {head}") for head in range(width)]
        about = partial(table, metric=style.title, kind=kind_label(kind), marks=q.MARKS)
        grids.append(about("one-head", cells, more=titles))
    every = [(*map(str, x), *q.cells(y, style)) for x, y in zip(heads, tests, strict=True)]
    free = sum(test["difference"] >= 0 for test in tests)
    return Result(
        title=f"Each head of {model.checkpoint.name} removed alone",
        data={**quality.facts(), **counts, "layers": layers},
        sentences=[
            f"All heads: {style.title} {style.score(quality.value)} on {len(quality.dense)} rows.",
            f"Removing one head: {free} of {len(tests)} heads cost nothing.",
            *significance,
        ],
        tables=grids,
        details=[table("every-head", every)],
        figure=_heads_figure(layers, f"change in {q.unit_of(style)}"),
    )


def _heads_figure(layers: dict[str, list[q.Effect]], label: str) -> Figure:
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


def layers(model: StudiedModel, rows: DataRows, options: LayersStudy) -> Result:
    """Remove all heads of a layer but its best one, and compare with the dense model."""
    best, how = _best_heads(model, rows, options)
    quality = q.MeasuredQuality(model, rows, options.evaluation)
    style, effects = quality.style, []
    for layer in model.layers:
        model.progress.message(f"leaving {layer.name} one of {layer.units} heads …")
        head = best[layer.name]
        others = [(layer.name, other) for other in range(layer.units) if other != head]
        effect = quality.without(Mask.full(model.layers).without(others))
        effects.append({"layer": layer.name, "heads": layer.units, "head": head, **effect})
    tests, counts, significance = quality.corrected(effects, "layers")
    cells = []
    for test in tests:
        kept, value = f"{test['head']} of {test['heads']}", style.score(test["value"])
        cells.append((test["layer"], kept, value, *q.cells(test, style, q.mark(test))))
    worst = min(tests, key=lambda test: test["difference"])
    loss = f"The largest loss is in {worst['layer']}: {style.difference(worst['difference'])}."
    return Result(
        title=f"One head per layer of {model.checkpoint.name}",
        data={**quality.facts(), "chosen_by": how, **counts, "layers": tests},
        sentences=[
            f"All heads: {style.title} {style.score(quality.value)}; each layer's one head "
            f"chosen by {how}.",
            loss if worst["difference"] < 0 else "No layer loses anything.",
            *significance,
        ],
        tables=[table("layers", cells, metric=style.title, marks=q.MARKS)],
        figure=_layers_figure(style, tests),
    )


def _best_heads(
    model: StudiedModel, rows: DataRows, options: LayersStudy
) -> tuple[dict[str, int], str]:
    """The head that each layer keeps, the best one alone or by its score, and how it was chosen."""
    if options.method is not None:
        scores = model.score(options.method, rows.calibration)
        best = {name: values.index(max(values)) for name, values in scores.values.items()}
        return best, f"highest score: {scores.signature}"
    if rows.calibration is None:
        raise UsageError(
            "`compress study layers` needs --calibration FILE to choose each layer's head on",
            id="calibration-missing",
        )
    model.progress.message("losses of each head alone …")
    # On other rows than the metric, which would otherwise flatter the heads chosen by it.
    with model.scoring(model.batches(rows.calibration)) as scoring:
        losses = losses_alone(scoring)
    best = {name: values.index(min(values)) for name, values in losses.items()}
    return best, "lowest loss on the calibration rows of the head alone in its layer"


def _layers_figure(style: MetricStyle, tests: Sequence[q.Effect]) -> Figure:
    figure, (axes,) = panels(5.2, 3.4)
    axes.axhline(0, color=DENSE, linestyle="--", linewidth=1.2)
    effects = {test["layer"]: test for test in tests}
    kinds = by_kind(effects)
    for i, (kind, names) in enumerate(kinds.items()):
        # Kinds beside each other, not on top of each other.
        shift = 0.12 * (i - (len(kinds) - 1) / 2)
        x = [place + shift for place in range(len(names))]
        for at, name in zip(x, names, strict=True):
            axes.plot([at, at], effects[name]["interval"], color=COLORS[i], marker="_")
        y = [effects[name]["difference"] for name in names]
        axes.plot(x, y, MARKERS[i], color=COLORS[i], label=kind_label(kind))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer that has one head left")
    axes.set_ylabel(f"change in {q.unit_of(style)}")
    axes.set_title("bars: 95% interval", loc="left", fontsize=9)
    legend(figure, axes)
    return figure
