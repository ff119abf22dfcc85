"""The report's plots, drawn with matplotlib, for files and for the HTML page.

Models differ in marker and line style as well as in color (Okabe & Ito's color-blind-safe set).
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

from compressor.report import numbers
from compressor.report.view import Plots, QualityPlot, QualityPoint, UnitsPanel
from compressor.steps.results import Interval
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
# Colors of lines and texts on a dark page; those of models are seen on both.
ON_DARK = {INK: "#e6eaef", FAINT: "#5a6672", DENSE: "#a3aebb"}
_ROOM = 0.08  # of a span, between the outermost values and the edge
_FASTEST = "fastest dense build"
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
    """Matplotlib's defaults with this module's changes, whatever the user has configured.

    With a fixed `hash_salt` the identifiers in SVG files are the same in every run.
    """
    import matplotlib.style

    with matplotlib.style.context(["default", {**_STYLE, "svg.hashsalt": hash_salt}]):
        yield


def _look(plots: Plots, build: str) -> dict[str, Any]:
    """How a build is drawn in every plot; builds of a model differ in how the marker is filled."""
    look = plots.looks[build]
    color, marker = DENSE, "X"
    if look.model is not None:
        color, marker = COLORS[look.model % len(COLORS)], MARKERS[look.model % len(MARKERS)]
    return {"color": color, "marker": marker, "fillstyle": _FILLS[look.build % len(_FILLS)]}


def _label(name: str) -> str:
    name = numbers.printable(name)
    return name if len(name) <= 28 else name[:25] + "..."


def limits(values: Sequence[tuple[float, Interval | None]], reference: float) -> Interval:
    """Limits of an axis that one wide interval cannot squash, and that no value is next to.

    They hold all values and at each side an interval of the usual width (the lower median), but at
    least `_ROOM` of what the values span.
    """
    known = [(x, ends) for x, ends in [(reference, None), *values] if math.isfinite(x)]
    inside = [x for x, _ in known] or [0.0]
    widths = [high - low for low, high in (ends for _, ends in known if ends) if high >= low]
    margin = median_low(widths) if widths else 0.0
    margin = max(margin, _ROOM * (max(inside) - min(inside)))
    margin = margin or 0.05 * max(map(abs, inside)) or 1.0
    return min(inside) - margin, max(inside) + margin


def quality_figure(plots: Plots) -> Figure | None:
    """The primary metric against the measured speed-up of every build, both with 95% intervals."""
    plot = plots.quality
    if plot is None:
        return None
    from matplotlib.figure import Figure

    points = [point for panel in plot.panels.values() for point in panel]
    shown = list(dict.fromkeys(point.build for point in points))
    count = len(plot.panels)
    columns = min(count, 3 if count in (3, 5, 6) else 2)
    rows, in_line = math.ceil(count / columns), 4 if columns > 1 else 2  # of the legend
    height = 2.9 * rows + 0.2 + 0.2 * math.ceil((len(shown) + 2) / in_line)
    figure = Figure(figsize=(min(5.2 * columns, 10.4), height), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    handles: dict[str, Line2D] = {}
    for axes, (size, panel) in zip(panels, plot.panels.items(), strict=False):
        _draw_panel(axes, plots, plot, panel, handles)
        if size in plot.fastest_dense:
            handles[_FASTEST] = axes.axvline(
                plot.fastest_dense[size], color=DENSE, linestyle=":", linewidth=1.2
            )
        axes.set_title(f"batch {size}", loc="left", fontsize=9)
    for axes in panels[count:]:
        axes.remove()
    speeds = [(point.speedup, point.speedup_interval) for point in points]
    speeds += [(speed, None) for speed in plot.fastest_dense.values()]
    qualities = [(point.score, point.score_interval) for point in points]
    panels[0].set(xlim=limits(speeds, 1.0), ylim=limits(qualities, plot.dense_score))
    figure.supxlabel("times as fast as dense fp32", fontsize=10)
    figure.supylabel(plot.style.title, fontsize=10)
    order = [plot.dense, *shown, *([_FASTEST] if plot.fastest_dense else [])]
    names = [
        f"{_label(plot.dense)} ({plot.style.score(plot.dense_score)})",
        *map(_label, order[1:]),
    ]
    figure.legend([handles[name] for name in order], names, loc="outside upper left", ncols=in_line)
    return figure


def _draw_panel(
    axes: Axes,
    plots: Plots,
    plot: QualityPlot,
    panel: Sequence[QualityPoint],
    handles: dict[str, Line2D],
) -> None:
    """Draw the builds of one batch size; `handles` gets their entries of the legend."""
    axes.axhline(plot.dense_score, color=DENSE, linestyle="--", linewidth=1.2)
    (handles[plot.dense],) = axes.plot(
        [1], [plot.dense_score], **_look(plots, plot.dense), linestyle="--"
    )
    for point in panel:
        # `Axes.errorbar` wants the estimate inside the interval, where a percentile interval need
        # not have it.
        look, interval = _look(plots, point.build), point.speedup_interval or (math.nan, math.nan)
        axes.plot([point.speedup] * 2, point.score_interval, color=look["color"], linewidth=1.2)
        axes.plot(interval, [point.score] * 2, color=look["color"], linewidth=1.2)
        (handles[point.build],) = axes.plot([point.speedup], [point.score], **look, linestyle="")


def throughput_figure(plots: Plots) -> Figure | None:
    """Sentences per second against batch size for every build; None without timings."""
    if not plots.throughput:
        return None
    from matplotlib.figure import Figure

    sizes = sorted({size for line in plots.throughput for size in line.batch_sizes})
    figure = Figure(figsize=(5.2, 3.5), layout="constrained")
    axes = figure.subplots()
    for line in plots.throughput:
        look = plots.looks[line.build]
        is_dense = look.model is None and look.build == 0
        axes.plot(
            line.batch_sizes,
            line.rates,
            **_look(plots, line.build),
            linestyle="--" if is_dense else "-",
            label=_label(line.build),
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, list(map(str, sizes)))
    axes.set(xlabel="batch size (sentences)", ylabel="sentences a second")
    rates = [rate for line in plots.throughput for rate in line.rates if math.isfinite(rate)]
    axes.set_ylim(-_ROOM * max(rates, default=1.0), (1 + _ROOM) * max(rates, default=1.0))
    figure.legend(loc="outside upper left", ncols=2)
    return figure


def units_figure(plots: Plots) -> Figure | None:
    """Which units every layer keeps, or how many: a row of panels for each model."""
    if not plots.units:
        return None
    from matplotlib.figure import Figure

    models = list(plots.units.values())
    most = max(len(panel.layers) for panel in models[0])
    figure = Figure(figsize=(10.4, len(models) * (0.16 * most + 0.7) + 0.3), layout="constrained")
    grid = figure.subplots(len(models), len(models[0]), squeeze=False)
    for (name, panels), row in zip(plots.units.items(), grid, strict=True):
        for panel, axes in zip(panels, row, strict=True):
            _draw_units(axes, panel)
        row[0].set_ylabel(_label(name), fontsize=7)
    return figure


def _draw_units(axes: Axes, panel: UnitsPanel) -> None:
    """Squares and crosses for the heads of each layer, bars for its neurons and tokens."""
    for layer, units in enumerate(panel.layers.values()):
        if units is None:
            axes.barh(layer, 0)  # its place: it hands on no tokens
        elif units.heads is not None:
            removed = [head for head in range(units.total) if head not in units.heads]
            axes.plot(units.heads, [layer] * len(units.heads), "s", color=COLORS[0])
            axes.plot(removed, [layer] * len(removed), "x", color=FAINT)
        else:
            unit = 100 / units.total if units.is_share else 1
            axes.barh(layer, unit * units.total, color="none", edgecolor=FAINT)
            axes.barh(layer, unit * units.kept, color=COLORS[0])
            if units.is_share:
                axes.set_xticks([0, 50, 100], ["0%", "50%", "100%"])
    axes.set_yticks(range(len(panel.layers)), list(panel.layers))
    axes.tick_params(labelsize=7, length=0)
    axes.margins(x=0.08, y=0.1)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_title(panel.title, loc="left", fontsize=7)


# In the order of importance. Each draws within `plot_style`; None if there is no data for it.
PLOTS: dict[str, Callable[[Plots], Figure | None]] = {
    "quality": quality_figure,
    "throughput": throughput_figure,
    "units": units_figure,
}
PLOT_FORMATS = (".png", ".svg")
PLOT_TITLE = "compress: report"  # in the files, to know them by


def figures(plots: Plots) -> Iterator[tuple[str, Figure]]:
    """The plots that there is data for, by name, each in its style until the next one."""
    for name, draw in PLOTS.items():
        with plot_style(name):
            figure = draw(plots)
            if figure is not None:
                yield name, figure


def save_plots(plots: Plots, directory: Path) -> list[Path]:
    """Write each plot of `PLOTS` that there is data for, as PNG and as SVG, on white.

    Args:
        plots: The series, of a report's view.
        directory: Where to write; made if it is not there.

    Returns:
        The files written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures(plots):
        for suffix in PLOT_FORMATS:
            written.append(directory / f"{name}{suffix}")
            save_figure(figure, written[-1], Title=PLOT_TITLE)
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


def page_svg(figure: Figure) -> str:
    """A figure as SVG for a page: without a background, and readable on a dark one, too.

    The page shows it as a picture, which knows the reader's preference but no rule of the page.
    """
    for axes in figure.axes:
        axes.patch.set_visible(False)
    svg = io.StringIO()
    figure.savefig(svg, format="svg", facecolor="none", metadata={"Date": None})
    rules = "".join(
        f'[style*="{what}: {light}"] {{ {what}: {dark} !important }}\n'
        for light, dark in ON_DARK.items()
        for what in ("fill", "stroke")
    )
    style = f"<style>\n@media (prefers-color-scheme: dark) {{\n{rules}}}\n</style>\n"
    start, end, rest = svg.getvalue().partition("<defs>")
    return f"{start}{style}{end}{rest}"


def is_plot(path: Path, title: str = PLOT_TITLE) -> bool:
    """Whether a file is a plot with a title: without one, whether `save_plots` made it."""
    with path.open("rb") as file:
        return title.encode() in file.read(1024)
