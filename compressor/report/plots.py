"""The report's plots, drawn with matplotlib, for files and for the HTML page.

Models differ in marker and line style as well as in color (Okabe & Ito's color-blind-safe set).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

from compressor.report import facts, numbers
from compressor.report.schema import Report
from compressor.results import Interval
from compressor.storage.files import written_at_once
from compressor.storage.hashes import sha256_of
from compressor.storage.outputs import update_manifest

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

INK = "#333333"
FAINT = "#bbbbbb"
DENSE = "#666666"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = ("o", "s", "^", "D", "v", "P")
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
            color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
        for number, build in enumerate(facts.builds(report, first)):
            fill = _FILLS[number % len(_FILLS)]
            looks[build.name] = {"color": color, "marker": marker, "fillstyle": fill}
    return looks


def _label(name: str) -> str:
    name = numbers.printable(name)
    return name if len(name) <= 28 else name[:25] + "..."


def limits(values: Sequence[tuple[float, Interval | None]], reference: float) -> Interval:
    """Limits of an axis that one wide interval cannot squash.

    They hold all values and at each side an interval of the usual width (the lower median).
    """
    known = [(x, ends) for x, ends in [(reference, None), *values] if math.isfinite(x)]
    inside = [x for x, _ in known] or [0.0]
    widths = [high - low for low, high in (ends for _, ends in known if ends) if high >= low]
    margin = median_low(widths) if widths else 0.0
    margin = margin or 0.05 * max(map(abs, inside)) or 1.0
    return min(inside) - margin, max(inside) + margin


def quality_figure(report: Report) -> Figure | None:
    """The primary metric against the measured speed-up of every build, both with 95% intervals."""
    metric, sizes = facts.primary_metric(report), facts.batch_sizes(report)
    compared = {v.name: made for v in report.variants if (made := facts.comparison(v, metric))}
    timed = [
        row
        for row in facts.all_timings(report)
        if row.variant in compared and row.speedup is not None
    ]
    if metric is None or not timed:
        return None
    from matplotlib.figure import Figure

    looks, style = _looks(report), facts.metric_style(metric)
    shown = list(dict.fromkeys(row.variant for row in timed))
    dense = compared[shown[0]].dense
    spans = {
        name: (dense + compared[name].interval[0], dense + compared[name].interval[1])
        for name in shown
    }
    columns = min(len(sizes), 3 if len(sizes) in (3, 5, 6) else 2)
    rows, in_line = math.ceil(len(sizes) / columns), 4 if columns > 1 else 2  # of the legend
    height = 2.9 * rows + 0.2 + 0.2 * math.ceil((len(shown) + 1) / in_line)
    figure = Figure(figsize=(min(5.2 * columns, 10.4), height), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    handles: dict[str, Line2D] = {}
    for axes, size in zip(panels, sizes, strict=False):
        axes.axhline(dense, color=DENSE, linestyle="--", linewidth=1.2)
        (handles[report.dense.name],) = axes.plot([1], [dense], **looks[report.dense.name],
                                                  linestyle="--")  # fmt: skip
        for row in timed:
            if row.batch_size == size:
                # `Axes.errorbar` wants the estimate inside the interval, where a percentile
                # interval need not have it.
                look, quality = looks[row.variant], compared[row.variant].pruned
                speed = row.speedup or 0.0
                color, interval = look["color"], row.speedup_interval or (math.nan, math.nan)
                axes.plot([speed] * 2, spans[row.variant], color=color, linewidth=1.2)
                axes.plot(interval, [quality] * 2, color=color, linewidth=1.2)
                (handles[row.variant],) = axes.plot([speed], [quality], **look, linestyle="")
        axes.set_title(f"batch {size}", loc="left", fontsize=9)
    for axes in panels[len(sizes) :]:
        axes.remove()
    speeds = [(row.speedup or 0.0, row.speedup_interval) for row in timed]
    qualities = [(compared[name].pruned, spans[name]) for name in shown]
    panels[0].set(xlim=limits(speeds, 1.0), ylim=limits(qualities, dense))
    figure.supxlabel("times as fast as dense", fontsize=10)
    figure.supylabel(style.title, fontsize=10)
    names = [f"{_label(report.dense.name)} ({style.score(dense)})", *map(_label, shown)]
    order = [handles[name] for name in (report.dense.name, *shown)]
    figure.legend(order, names, loc="outside upper left", ncols=in_line)
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
            for layer, name in enumerate(names):
                if name in variant.heads:
                    kept = variant.kept[name]
                    removed = [head for head in range(variant.heads[name]) if head not in kept]
                    axes.plot(kept, [layer] * len(kept), "s", color=COLORS[0])
                    axes.plot(removed, [layer] * len(removed), "x", color=FAINT)
                else:
                    axes.barh(layer, variant.neurons[name], color="none", edgecolor=FAINT)
                    axes.barh(layer, variant.kept_neurons[name], color=COLORS[0])
            axes.set_yticks(range(len(names)), [name.rpartition(".")[2] for name in names])
            axes.tick_params(labelsize=7, length=0)
            axes.margins(y=0.1)
            axes.invert_yaxis()
            axes.grid(visible=False)
            count = f"{facts.kept(variant, kind):,} of {facts.total(variant, kind):,}"
            axes.set_title(f"{facts.kind_label(kind)}: {count}", loc="left", fontsize=7)
        panels[0].set_ylabel(_label(variant.name), fontsize=7)
    return figure


# In the order of importance. Each draws within `plot_style`; None if the report has no data for it.
PLOTS: dict[str, Callable[[Report], Figure | None]] = {
    "quality": quality_figure,
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


def is_plot(path: Path, title: str = PLOT_TITLE) -> bool:
    """Whether a file is a plot with a title: without one, whether `save_plots` made it."""
    with path.open("rb") as file:
        return title.encode() in file.read(1024)
