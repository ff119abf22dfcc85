"""Quality with all heads of a layer removed but one (Michel, Levy & Neubig 2019, section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compressor.errors import UsageError
from compressor.importance.ablation_runs import losses_alone
from compressor.model.sublayers import Mask
from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, DENSE, MARKERS
from compressor.study.options import LayersStudy
from compressor.study.plotting import legend, panels
from compressor.study.quality import Effect, MeasuredQuality, effect_cells, mark
from compressor.study.run import Result, StudiedModel, by_kind, table
from compressor.tasks.opened import DataRows


def layers(model: StudiedModel, rows: DataRows, options: LayersStudy) -> Result:
    """Measure quality with all heads of a layer removed but one, for each layer.

    Raises:
        UsageError: there is neither a scoring method nor calibration rows to choose the heads by.
    """
    if options.method is not None:
        scores = model.score(options.method, rows.calibration)
        best = {name: values.index(max(values)) for name, values in scores.values.items()}
        how = f"highest score: {scores.signature}"
    elif rows.calibration is not None:
        model.progress.message("losses of each head alone …")
        # On other rows than the metric, which would otherwise flatter the heads chosen by it.
        with model.scoring(model.batches(rows.calibration)) as scoring:
            losses = losses_alone(scoring)
        best = {name: values.index(min(values)) for name, values in losses.items()}
        how = "lowest loss on the calibration rows of the head alone in its layer"
    else:
        raise UsageError(
            "`compress study layers` needs --calibration FILE to choose each layer's head on",
            id="calibration-missing",
        )
    quality = MeasuredQuality(model, rows, options.evaluation)
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
        cells.append((test["layer"], kept, value, *effect_cells(test, style, mark(test))))
    worst = min(tests, key=lambda test: test["difference"])
    loss = f"The largest loss is in {worst['layer']}: {style.difference(worst['difference'])}."
    return Result(
        title=f"One head per layer of {model.checkpoint.name}",
        data={**quality.facts, "chosen_by": how, **counts, "layers": tests},
        sentences=[
            f"{quality.text}; each layer's one head chosen by {how}.",
            loss if worst["difference"] < 0 else "No layer loses anything.",
            significance,
        ],
        tables=[table("layers", cells, metric=style.title)],
        figure=_layers_figure(quality.axis, {test["layer"]: test for test in tests}),
    )


def _layers_figure(label: str, tests: Mapping[str, Effect]) -> Figure:
    figure, (axes,) = panels(5.2, 3.4)
    axes.axhline(0, color=DENSE, linestyle="--", linewidth=1.2)
    kinds = by_kind(tests)
    for i, (kind, names) in enumerate(kinds.items()):
        # Kinds beside each other, not on top of each other.
        x = np.arange(len(names)) + 0.12 * (i - (len(kinds) - 1) / 2)
        axes.vlines(x, *zip(*(tests[x]["interval"] for x in names), strict=True), color=COLORS[i])
        y = [tests[name]["difference"] for name in names]
        axes.plot(x, y, MARKERS[i], color=COLORS[i], label=kind_label(kind))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="layer that has one head left", ylabel=label)
    axes.set_title("bars: 95% interval", loc="left", fontsize=9)
    legend(figure, axes)
    return figure
