"""What several figures share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from compressor.model.sublayers import KINDS, kind_of
from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL = 0.34  # inches


def panel(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of one panel; sizes in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def draw_lines(axes: Axes, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """Lines by name, x and y each, that differ in color and marker."""
    for i, (name, (x, y)) in enumerate(lines.items()):
        color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
        axes.plot(x, y, color=color, marker=marker, label=name)


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

    kinds = by_kind(heads)
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
