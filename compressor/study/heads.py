"""Quality with each head removed alone (Michel, Levy & Neubig 2019, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from compressor.importance.ablation_runs import outputs_without_units
from compressor.report.facts import kind_label
from compressor.report.plots import INK
from compressor.report.table import Column
from compressor.study.options import HeadsStudy
from compressor.study.plotting import head_panels
from compressor.study.quality import Effect, MeasuredQuality, effect_cells, mark
from compressor.study.run import Result, StudiedModel, by_kind, table
from compressor.tasks.opened import DataRows


def heads(model: StudiedModel, rows: DataRows, options: HeadsStudy) -> Result:
    """Measure quality with each head removed alone."""
    quality = MeasuredQuality(model, rows, options.evaluation)
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
    rest = iter(tests)
    layers = {layer.name: [next(rest) for _ in range(layer.units)] for layer in model.layers}
    grids = []  # a row per layer, a column per head
    for kind, names in by_kind(layers).items():
        cells = []
        for name in names:
            changes = (style.difference(x["difference"]) + mark(x) for x in layers[name])
            cells.append((name.rpartition(".")[2], *changes))
        titles = [Column(f"head {test['head']}") for test in layers[names[0]]]
        label = kind_label(kind)
        grids.append(table("one-head", cells, more=titles, metric=style.title, kind=label))
    every = [(*map(str, x), *effect_cells(y, style)) for x, y in zip(heads, tests, strict=True)]
    free = sum(test["difference"] >= 0 for test in tests)
    return Result(
        title=f"Each head of {model.checkpoint.name} removed alone",
        data={**quality.facts, **counts, "layers": layers},
        sentences=[
            f"{quality.text} on {len(quality.dense)} rows.",
            f"Removing one head: {free} of {len(tests)} heads cost nothing.",
            significance,
        ],
        tables=grids,
        details=[table("every-head", every)],
        figure=_heads_figure(layers, quality.axis),
    )


def _heads_figure(layers: Mapping[str, Sequence[Effect]], label: str) -> Figure:
    figure, panels = head_panels({name: len(tests) for name, tests in layers.items()})
    # The same range to both sides, so that white is no change; any range where all are zero.
    limit = max(abs(test["difference"]) for tests in layers.values() for test in tests) or 1.0
    for kind, names in by_kind(layers).items():
        changes = [[test["difference"] for test in layers[name]] for name in names]
        image = panels[kind].imshow(changes, cmap="RdBu", vmin=-limit, vmax=limit, aspect="equal")
        marked = [
            (x["head"], row) for row, name in enumerate(names) for x in layers[name] if mark(x)
        ]
        if marked:
            panels[kind].scatter([x for x, _ in marked], [y for _, y in marked], s=9, color=INK)
    # The color bar of the last panel is that of all, since they have one range of values.
    figure.colorbar(image, ax=list(panels.values()), label=label, shrink=0.9)
    return figure
