"""Figures that several studies draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from compressor.model.sublayers import KINDS, kind_of
from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, DENSE, INK, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL = 0.34  # inches


@dataclass(frozen=True)
class Line:
    """A named line; `bands` are the ends of the interval at every point, where there are any."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    bands: Sequence[tuple[float, float]] = ()


def draw_lines(axes: Axes, lines: Sequence[Line], dense: float | None = None) -> None:
    """Lines with markers, colors and shaded bands; a dashed one for the dense model."""
    if dense is not None:
        axes.axhline(dense, color=DENSE, linestyle="--", linewidth=1.2)
    for i, line in enumerate(lines):
        color = COLORS[i % len(COLORS)]
        axes.plot(line.x, line.y, color=color, marker=MARKERS[i % len(MARKERS)], label=line.name)
        if line.bands:
            low, high = zip(*line.bands, strict=True)
            axes.fill_between(line.x, low, high, color=color, alpha=0.15, linewidth=0)


def panel(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of one panel; sizes in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def legend(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """Put the legend of some axes above the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=columns)


def by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    """Layer names by kind of sublayer, in the canonical order."""
    names = list(names)
    groups = {kind: [name for name in names if kind_of(name) == kind] for kind in KINDS}
    return {kind: layers for kind, layers in groups.items() if layers}


def head_panels(heads: Mapping[str, int]) -> tuple[Figure, dict[str, Axes]]:
    """A figure with a panel per kind: a row per layer, a column per head, both from 0."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    kinds = by_kind(list(heads))
    columns = [max(heads[name] for name in names) for names in kinds.values()]
    room = [max(width, 7) for width in columns]  # enough for the panel's title
    rows = max(len(names) for names in kinds.values())
    figure = Figure(
        figsize=(max(4.0, sum(room) * _CELL + 1.6), max(2.2, rows * _CELL + 1.3)),
        layout="constrained",
    )
    # `squeeze` would take the panel of a single kind out of its array.
    (row,) = figure.subplots(1, len(kinds), squeeze=False, width_ratios=room)
    panels = dict(zip(kinds, row, strict=True))
    for (kind, axes), width in zip(panels.items(), columns, strict=True):
        axes.set_title(kind_label(kind), loc="left", fontsize=9)
        axes.set_xlabel("head")
        axes.set_ylabel("layer")
        axes.grid(False)
        axes.set_xlim(-0.5, width - 0.5)
        # Layer 0 on top, as in the tables.
        axes.set_ylim(len(kinds[kind]) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, panels


def heat_map(
    values: Mapping[str, Sequence[float]], marked: set[tuple[str, int]], label: str
) -> Figure:
    """A value per head, red below and blue above zero, with a dot in the marked ones."""
    figure, panels = head_panels({name: len(by_head) for name, by_head in values.items()})
    # The same range to both sides, so that white is no change; any range where all are zero.
    limit = max((abs(value) for by_head in values.values() for value in by_head), default=0) or 1.0
    for kind, names in by_kind(list(values)).items():
        axes = panels[kind]
        width = max(len(values[name]) for name in names)
        grid = np.full((len(names), width), math.nan)  # [layers, heads]; NaN: no such head
        for row, name in enumerate(names):
            grid[row, : len(values[name])] = values[name]
        image = axes.imshow(
            np.ma.masked_invalid(grid), cmap="RdBu", vmin=-limit, vmax=limit, aspect="equal"
        )
        dots = [
            (head, row)
            for row, n in enumerate(names)
            for head in range(width)
            if (n, head) in marked
        ]
        if dots:
            axes.scatter([x for x, _ in dots], [y for _, y in dots], s=9, color=INK)
    # The last panel stands for all, since they have one range of values.
    figure.colorbar(image, ax=list(panels.values()), label=label, shrink=0.9)
    return figure
