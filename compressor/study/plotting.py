"""Figures of studies: panels, lines and legends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, MARKERS
from compressor.study.run import by_kind

_CELL = 0.34  # inches


def panels(width: float, height: float, columns: int = 1, **grid: Any) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False, **grid)[0])


def head_panels(heads: Mapping[str, int]) -> tuple[Figure, dict[str, Axes]]:
    """A figure with a panel per kind of attention: a row per layer, a column per head, both from 0.

    Args:
        heads: layer name -> number of heads.

    Returns:
        The figure, and its axes by kind.
    """
    kinds = by_kind(heads)
    columns = [max(heads[name] for name in names) for names in kinds.values()]
    room = [max(width, 7) for width in columns]  # enough for the panel's title
    rows = max(len(names) for names in kinds.values())
    size = max(4.0, sum(room) * _CELL + 1.6), max(2.2, rows * _CELL + 1.3)
    figure, row = panels(*size, len(kinds), width_ratios=room)
    for (kind, names), axes, width in zip(kinds.items(), row, columns, strict=True):
        axes.set_title(kind_label(kind), loc="left", fontsize=9)
        axes.grid(False)
        # Layer 0 on top, as in the tables.
        axes.set(xlim=(-0.5, width - 0.5), ylim=(len(names) - 0.5, -0.5))
        axes.set(xlabel="head", ylabel="layer")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
    return figure, dict(zip(kinds, row, strict=True))


def draw_lines(axes: Axes, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """Draw lines with markers, each in a color of its own.

    Args:
        axes: where to draw.
        lines: label -> (x, y).
    """
    for i, (name, (x, y)) in enumerate(lines.items()):
        color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
        axes.plot(x, y, color=color, marker=marker, label=name)


def legend(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """Put the legend of some axes above the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=columns)
