"""The report's plots, drawn with matplotlib, for files and for the HTML page.

Models differ in marker and line style as well as in color (Okabe & Ito's color-blind-safe set).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.report import facts, numbers
from compressor.report.schema import Report
from compressor.results import Interval, Ranking, Variant
from compressor.storage.files import written_at_once
from compressor.storage.hashes import sha256_of
from compressor.storage.outputs import update_manifest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

INK = "#333333"
FAINT = "#bbbbbb"
DENSE = "#666666"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = ("o", "s", "^", "D", "v", "P")
SHADES = ("#cfe3f3", "#9cc6e4", "#5ea3d0", "#2277ad", "#084a7a")  # fifths of scores
_FILLS = ("full", "none", "left", "right")  # of float32, others

_STYLE = {
    "svg.fonttype": "none",  # text stays text: selectable, and readable to screen readers
    "text.parse_math": False,  # a "$" in a name is a dollar sign
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@contextmanager
def plot_style(hash_salt: str) -> Iterator[None]:
    """matplotlib's defaults with this module's changes, whatever the user has configured.

    With a fixed `hash_salt` the identifiers in SVG files are the same in every run.
    """
    import matplotlib.style

    with matplotlib.style.context(["default", {**_STYLE, "svg.hashsalt": hash_salt}]):
        yield


def _looks(report: Report) -> dict[str, dict[str, Any]]:
    """How each model is drawn in every plot; builds of a model differ in how it is filled."""
    looks: dict[str, dict[str, Any]] = {}
    for i, first in enumerate((report.dense, *facts.pruned(report)), -1):
        color, marker = DENSE, "X"
        if first is not report.dense:
            color = COLORS[i % len(COLORS)]
            # Shift the markers when the colors start again, so that no pair repeats early.
            marker = MARKERS[(i + i // len(COLORS)) % len(MARKERS)]
        for number, build in enumerate(facts.builds(report, first)):
            fill = _FILLS[number % len(_FILLS)]
            looks[build.name] = {"color": color, "marker": marker, "fillstyle": fill}
    return looks


def _label(name: str) -> str:
    name = numbers.printable(name)
    return name if len(name) <= 28 else name[:25] + "..."


def _panels(rows: int, columns: int, entries: int) -> tuple[Figure, list[Axes]]:
    """A grid of panels with the same axes, below room for a legend of so many entries."""
    from matplotlib.figure import Figure

    width = 5.2 * columns if columns < 3 else 10.4
    height = 2.9 * rows + 0.2 + 0.2 * math.ceil(entries / (2 * min(columns, 2)))
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    return figure, list(grid.flat)


def _legend(figure: Figure, handles: Sequence[Line2D], names: Sequence[str], columns: int) -> None:
    """A legend above the axes.

    Names are set afterwards, because matplotlib leaves out entries whose name begins with "_".
    """
    entries = [f"entry {i}" for i in range(len(names))]
    legend = figure.legend(handles, entries, loc="outside upper left", ncols=columns)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)


def _error_bar(
    axes: Axes, at: float, bounds: Interval | None, color: str, *, level: bool = False
) -> None:
    """An interval as a bar with caps, upright or level.

    `Axes.errorbar` wants the point estimate inside the interval, where a percentile interval need
    not have it.
    """
    if bounds is None or not all(map(math.isfinite, bounds)):
        return
    ends = (bounds, [at, at]) if level else ([at, at], bounds)
    axes.plot(*ends, color=color, linewidth=1.2, marker="|" if level else "_", markersize=6)


def limits(values: Sequence[tuple[float, Interval | None]], reference: float) -> Interval:
    """Limits of an axis that one wide interval cannot squash.

    They hold all values, the reference, and of each interval what reaches no further from its value
    than twice as far as usual (the lower median), or than the values are from each other.
    """
    points = [(value, ends) for value, ends in values if math.isfinite(value)]
    known = [(v, ends) for v, ends in points if ends and all(map(math.isfinite, ends))]
    reaches = sorted(max(value - ends[0], ends[1] - value) for value, ends in known)
    inside = [reference, *(value for value, _ in points)]
    usual = 2 * reaches[(len(reaches) - 1) // 2] if reaches else 0.0
    most = max(usual, max(inside) - min(inside))
    inside += [max(ends[0], value - most) for value, ends in known]
    inside += [min(ends[1], value + most) for value, ends in known]
    low, high = min(inside), max(inside)
    margin = 0.08 * (high - low) or 0.05 * (abs(high) or 1)
    return low - margin, high + margin


def quality_figure(report: Report) -> Figure | None:
    """The primary metric against the measured speed-up of every build, both with 95% intervals.

    A panel for each batch size, all with the same axes. None where no build was both compared and
    timed.
    """
    metric, sizes = facts.primary_metric(report), facts.batch_sizes(report)
    compared = {v.name: made for v in report.variants if (made := facts.comparison(v, metric))}
    timed = [
        row
        for row in facts.all_timings(report)
        if row.variant in compared and row.speedup is not None and row.batch_size in sizes
    ]
    if metric is None or not timed:
        return None
    looks, style = _looks(report), facts.metric_style(metric)
    shown = [name for name in compared if any(row.variant == name for row in timed)]
    dense = compared[shown[0]].dense
    spans = {
        name: (dense + compared[name].interval[0], dense + compared[name].interval[1])
        for name in shown
    }
    columns = min(len(sizes), 3 if len(sizes) in (3, 5, 6) else 2)
    rows = math.ceil(len(sizes) / columns)
    figure, panels = _panels(rows, columns, len(shown) + 1)
    handles: dict[str, Line2D] = {}
    for axes, size in zip(panels, sizes, strict=False):
        here = [row for row in timed if row.batch_size == size]
        axes.axhline(dense, color=DENSE, linestyle="--", linewidth=1.2)
        (handles[report.dense.name],) = axes.plot([1], [dense], **looks[report.dense.name],
                                                  linestyle="--")  # fmt: skip
        for row in here:
            look, quality = looks[row.variant], compared[row.variant].pruned
            speed = row.speedup or 0.0
            _error_bar(axes, speed, spans[row.variant], look["color"])
            _error_bar(axes, quality, row.speedup_interval, look["color"], level=True)
            (handles[row.variant],) = axes.plot([speed], [quality], **look, linestyle="")
        busy = ": busy machine, run again" if any(map(facts.is_wide, here)) else ""
        axes.set_title(f"batch {size}{busy}", loc="left", fontsize=9)
    for axes in panels[len(sizes) :]:
        axes.remove()
    speeds = [(row.speedup or 0.0, row.speedup_interval) for row in timed]
    qualities = [(compared[name].pruned, spans[name]) for name in shown]
    panels[0].set(xlim=limits(speeds, 1.0), ylim=limits(qualities, dense))
    figure.supxlabel("times as fast as dense", fontsize=10)
    figure.supylabel(style.title, fontsize=10)
    names = [f"{_label(report.dense.name)} ({style.score(dense)})"]
    names += [_label(name) for name in shown]
    order = [handles[name] for name in (report.dense.name, *shown)]
    _legend(figure, order, names, 4 if columns > 1 else 2)
    return figure


def throughput_figure(report: Report) -> Figure | None:
    """Sentences per second against batch size for every model; None without timings."""
    sizes = facts.batch_sizes(report)
    if not sizes:
        return None
    from matplotlib.ticker import FixedLocator, NullLocator

    timed = {x.name: rows for x in facts.models(report) if (rows := facts.timings(report, x.name))}
    looks = _looks(report)
    figure, (axes,) = _panels(1, 1, len(timed))
    handles = []
    for name, rows in timed.items():
        batches, rates = zip(*((x.batch_size, x.sentences_per_second) for x in rows), strict=True)
        line = "--" if name == report.dense.name else "-"
        handles += axes.plot(batches, rates, **looks[name], linestyle=line)
    # Batch sizes on a base-2 logarithmic axis, with a tick at each one measured.
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([float(size) for size in sizes]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.set(xlabel="batch size (sentences)", ylabel="throughput (sentences/s)")
    axes.set_xlim(min(sizes) / 1.3, max(sizes) * 1.3)
    axes.set_ylim(bottom=0)
    _legend(figure, handles, [_label(name) for name in timed], 2)
    return figure


def units_figure(report: Report) -> Figure | None:
    """Which heads, and how many neurons, every layer keeps: a row of panels for each model."""
    pruned, kinds = facts.pruned(report), facts.kinds(report)
    if not pruned or not kinds:
        return None
    from matplotlib.figure import Figure

    most = max(len(facts.layers(report.dense, kind)) for kind in kinds)
    height = len(pruned) * (0.16 * most + 0.7) + 0.3
    figure = Figure(figsize=(10.4, height), layout="constrained")
    grid = figure.subplots(len(pruned), len(kinds), squeeze=False)
    for variant, panels in zip(pruned, grid, strict=True):
        for kind, axes in zip(kinds, panels, strict=True):
            names = facts.layers(variant, kind)
            if names and names[0] in variant.heads:
                _draw_heads(axes, variant, names, facts.scoring(report, variant))
            else:
                totals = [variant.neurons[name] for name in names]
                axes.barh(range(len(names)), totals, color="none", edgecolor=FAINT, linewidth=0.8)
                left = [variant.kept_neurons[name] for name in names]
                axes.barh(range(len(names)), left, color=SHADES[3])
            axes.set_yticks(range(len(names)), [name.rpartition(".")[2] for name in names])
            axes.tick_params(labelsize=7, length=0)
            axes.invert_yaxis()
            axes.grid(visible=False)
            kept = f"{facts.kept(variant, kind):,} of {facts.total(variant, kind):,}"
            axes.set_title(f"{facts.kind_label(kind)}: {kept}", loc="left", fontsize=7)
        panels[0].set_ylabel(_label(variant.name), fontsize=7)
    return figure


def _draw_heads(axes: Axes, variant: Variant, names: list[str], scoring: Ranking | None) -> None:
    """A square for each head kept, and a cross for each removed.

    Squares have the color of the fifth of all finite scores that the head is in, by rank over all
    kinds: scores of most methods span orders of magnitude, of which a linear scale would show two
    shades. Equal scores share a shade.
    """
    scores = {
        (name, head): score
        for name, values in (scoring.values.items() if scoring else ())
        for head, score in enumerate(values)
        if math.isfinite(score)
    }
    ordered = sorted(scores.values())
    shades = {
        key: SHADES[len(SHADES) * bisect.bisect_left(ordered, score) // len(ordered)]
        for key, score in scores.items()
    }
    points: dict[tuple[str, str], list[tuple[int, int]]] = {}  # marker, color -> head, layer
    for layer, name in enumerate(names):
        for head in range(variant.heads[name]):
            kept = head in variant.kept[name]
            look = ("s", shades.get((name, head), DENSE)) if kept else ("x", FAINT)
            points.setdefault(look, []).append((head, layer))
    for (marker, color), drawn in points.items():
        axes.plot(*zip(*drawn, strict=True), linestyle="", marker=marker, color=color)
    width = max(variant.heads[name] for name in names)
    axes.set(xticks=[], xlim=(-0.6, width - 0.4), ylim=(-0.6, len(names) - 0.4))


# In the order of importance. Each draws within `plot_style`; None if the report has no data for it.
PLOTS: dict[str, Callable[[Report], Figure | None]] = {
    "quality": quality_figure,
    "throughput": throughput_figure,
    "units": units_figure,
}
PLOT_FORMATS = (".png", ".svg")
PLOT_TITLE = "compress: report"  # in the files, to know them by


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    """The plots that the report has data for, by name, each in its style until the next one."""
    for name, draw in PLOTS.items():
        with plot_style(name):
            figure = draw(report)
            if figure is not None:
                yield name, figure


def save_plots(report: Report, directory: Path) -> list[Path]:
    """Write each plot of `PLOTS` that the report has data for, as PNG and as SVG, on white."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures(report):
        for suffix in PLOT_FORMATS:
            path = directory / f"{name}{suffix}"
            save_figure(figure, path, Title=PLOT_TITLE)
            written.append(path)
    update_manifest(directory, {path.name: sha256_of(path) for path in written})
    return written


def save_figure(figure: Figure, path: Path, **metadata: Any) -> None:
    """Write a figure as PNG (200 dpi) or SVG, by the ending; the same figure is the same file."""
    options: dict[str, Any] = {"dpi": 200}
    # matplotlib writes the time into SVG files.
    if path.suffix.lower() == ".svg":
        options, metadata = {}, metadata | {"Date": None}
    with written_at_once(path) as staged:
        figure.savefig(staged, facecolor="white", metadata=metadata, **options)


def is_plot(path: Path, title: str = PLOT_TITLE) -> bool:
    """Whether a file is a plot with a title: without one, whether `save_plots` made it."""
    with path.open("rb") as file:
        return title.encode() in file.read(1024)
