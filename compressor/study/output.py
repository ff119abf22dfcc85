"""The result of a study: its four files, its text for a terminal, and what its plots share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compressor.model.sublayers import KINDS, kind_of
from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, MARKERS, PLOT_FORMATS, save_figure
from compressor.report.table import ReportTable, bullets, escape, make_table, render_table
from compressor.report.table import render_text as text_of
from compressor.storage.files import write_at_once, write_json

PREFIX = "study-"
_CELL = 0.34  # inches


@dataclass(frozen=True)
class Result:
    """The result of a study."""

    title: str  # of the Markdown page
    data: dict[str, Any]  # all numbers, for the JSON file
    sentences: list[str]  # the conclusions from the tables
    tables: list[ReportTable]  # on the terminal and on the page
    figure: Figure
    details: Sequence[ReportTable] = ()  # longer tables, on the page alone


table = partial(make_table, words=Path(__file__).with_name("tables.toml"))


def write_result(result: Result, stem: Path) -> None:
    """Write all four files of a study; the plot in the current style."""
    for suffix in PLOT_FORMATS:
        save_figure(result.figure, stem.with_suffix(suffix))
    plot = f"![{stem.name}.png]({stem.name}.png)"
    blocks = [f"# {escape(result.title)}", *bullets(result.sentences), plot]
    for shown in (*result.tables, *result.details):
        blocks += render_table(shown)
    write_at_once(stem.with_suffix(".md"), "\n\n".join(blocks) + "\n")
    # Last, because it says that the study is complete.
    write_json(stem.with_suffix(".json"), result.data)


def render_text(result: Result) -> str:
    """The sentences and the short tables, for a terminal."""
    blocks = ["\n".join(result.sentences), tables_as_text(result.tables)]
    return "\n\n".join(filter(None, blocks))


def tables_as_text(tables: Sequence[ReportTable]) -> str:
    """Tables with their captions, for a terminal."""
    return "\n\n".join(f"{x.caption}\n{text_of(x.columns, x.rows)}" for x in tables)


def by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    """Layer names by kind of sublayer, in the canonical order."""
    names = list(names)
    groups = {kind: [name for name in names if kind_of(name) == kind] for kind in KINDS}
    return {kind: layers for kind, layers in groups.items() if layers}


def panels(width: float, height: float, columns: int = 1, **grid: Any) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False, **grid)[0])


def head_panels(heads: Mapping[str, int]) -> tuple[Figure, dict[str, Axes]]:
    """A figure with a panel per kind: a row per layer, a column per head, both from 0."""
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
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, dict(zip(kinds, row, strict=True))


def draw_lines(axes: Axes, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """Lines by name, x and y each, that differ in color and marker."""
    for i, (name, (x, y)) in enumerate(lines.items()):
        color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
        axes.plot(x, y, color=color, marker=marker, label=name)


def legend(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """Put the legend of some axes above the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=columns)
