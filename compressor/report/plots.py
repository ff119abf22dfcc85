"""The report's plots, drawn with matplotlib, for files and for the HTML page.

Models differ in marker and line style as well as in color (Okabe & Ito's color-blind-safe set).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.report import facts, numbers
from compressor.report.schema import Report
from compressor.results import Timing
from compressor.storage.files import written_at_once
from compressor.storage.hashes import sha256_of
from compressor.storage.outputs import update_manifest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.typing import FillStyleType

INK = "#333333"
FAINT = "#bbbbbb"
DENSE = "#666666"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = ("o", "s", "^", "D", "v", "P")
_DENSE_MARKER = "X"
_FILLS: tuple[FillStyleType, ...] = ("full", "none", "left", "right")  # of float32, others
_LEGEND_NAME = 28
_RATIO_LINE: dict[str, Any] = {"linestyle": ":", "linewidth": 1.2, "markerfacecolor": "none"}

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

    Args:
        hash_salt: makes the identifiers in SVG files the same in every run.
    """
    import matplotlib.style

    with matplotlib.style.context(["default", {**_STYLE, "svg.hashsalt": hash_salt}]):
        yield


@dataclass(frozen=True)
class Look:
    """How one model is drawn in every plot; precisions of a model differ in how it is filled."""

    name: str
    color: str
    marker: str
    fill: FillStyleType

    @property
    def style(self) -> dict[str, Any]:
        """For `Axes.plot`."""
        return {"color": self.color, "marker": self.marker, "fillstyle": self.fill}


def _looks(report: Report) -> dict[str, Look]:
    looks = {}
    for i, first in enumerate((report.dense, *facts.pruned(report)), -1):
        color, marker = DENSE, _DENSE_MARKER
        if first is not report.dense:
            color = COLORS[i % len(COLORS)]
            # Shift the markers when the colors start again, so that no pair repeats early.
            marker = MARKERS[(i + i // len(COLORS)) % len(MARKERS)]
        for place, build in enumerate(facts.builds(report, first)):
            name = numbers.printable(build.name)
            name = name if len(name) <= _LEGEND_NAME else name[: _LEGEND_NAME - 3] + "..."
            looks[build.name] = Look(name, color, marker, _FILLS[place % len(_FILLS)])
    return looks


def _panels(count: int, entries: int) -> tuple[Figure, Sequence[Axes]]:
    """Panels side by side with one vertical axis, below room for a legend of so many entries."""
    from matplotlib.figure import Figure

    height = 3.1 + 0.2 * math.ceil(entries / (2 * count))
    figure = Figure(figsize=(5.2 * count, height), layout="constrained")
    return figure, figure.subplots(1, count, sharey=True, squeeze=False)[0]


def _legend(figure: Figure, handles: Sequence[Line2D], names: Sequence[str]) -> None:
    """A legend above the axes, with two entries in a row for each panel.

    Names are set afterwards, because matplotlib leaves out entries whose name begins with "_".
    """
    legend = figure.legend(
        handles,
        [f"entry {i}" for i in range(len(names))],
        loc="outside upper left",
        ncols=2 * len(figure.axes),
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)


def _batch_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """Batch sizes on a base-2 logarithmic axis, with a tick at each one measured."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([float(size) for size in sizes]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.set_xlim(min(sizes) / 1.3, max(sizes) * 1.3)
    axes.set_xlabel("batch size (sentences)")


def _error_bar(
    axes: Axes, at: float, bounds: tuple[float, float] | None, color: str, *, level: bool = False
) -> None:
    """An interval as a bar with caps, upright or level.

    Not `Axes.errorbar`, which wants the point estimate inside the interval: a percentile interval
    need not contain it.
    """
    if bounds is None or not all(map(math.isfinite, bounds)):
        return
    ends = (bounds, [at, at]) if level else ([at, at], bounds)
    axes.plot(*ends, color=color, linewidth=1.2, marker="|" if level else "_", markersize=6)


@dataclass(frozen=True)
class _Panel:
    """Where models stand on the level axis, with intervals.

    Args:
        at: name of a model -> place and interval.
        dense: where the dense model stands; None where its line is enough.
    """

    label: str
    note: str
    at: dict[str, tuple[float, tuple[float, float] | None]]
    dense: float | None = None


def _draw_quality(report: Report, panels: Sequence[_Panel]) -> Figure:
    """The primary metric of models with the 95% interval of the difference from dense."""
    metric = facts.primary_metric(report)
    assert metric is not None
    style, looks = facts.metric_style(metric), _looks(report)
    shown = [v for v in report.variants if any(v.name in panel.at for panel in panels)]
    dense = next(x.dense for v in shown if (x := facts.comparison(v, metric)))
    figure, axes_of = _panels(len(panels), len(shown) + 1)
    for axes, panel in zip(axes_of, panels, strict=True):
        lines: list[Line2D] = []
        for variant in shown:
            found, look = facts.comparison(variant, metric), looks[variant.name]
            if found is None or variant.name not in panel.at:
                continue
            place, interval = panel.at[variant.name]
            ends = (dense + found.interval[0], dense + found.interval[1])
            _error_bar(axes, place, ends, look.color)
            _error_bar(axes, found.pruned, interval, look.color, level=True)
            lines += axes.plot([place], [found.pruned], **look.style, linestyle="")
        lines.append(axes.axhline(dense, color=DENSE, linestyle="--", linewidth=1.2))
        if panel.dense is not None:
            axes.plot([panel.dense], [dense], **looks[report.dense.name].style, linestyle="")
        axes.set_xlabel(panel.label)
        axes.set_title(panel.note, loc="left", fontsize=9)
        axes.margins(x=0.12, y=0.15)
    axes_of[0].set_ylabel(style.title)
    named = f"{looks[report.dense.name].name} ({style.score(dense)})"
    _legend(figure, lines, [*(looks[variant.name].name for variant in shown), named])
    return figure


def tradeoff_figure(report: Report) -> Figure | None:
    """The primary metric against the measured speed-up of every build, both with 95% intervals.

    A panel each for the smallest and the largest batch size. None where no build was both compared
    and timed.
    """
    metric, sizes = facts.primary_metric(report), facts.batch_sizes(report)
    panels = []
    for size in dict.fromkeys(sizes[:1] + sizes[-1:]):
        at = {
            row.variant: (row.speedup, row.speedup_interval)
            for variant in report.variants
            if facts.comparison(variant, metric)
            for row in facts.with_speedup(report, variant)
            if row.batch_size == size and row.speedup is not None
        }
        note = f"batch {size}; bars: 95% intervals"
        panels.append(_Panel("times as fast as dense, measured", note, at, dense=1))
    return _draw_quality(report, panels) if any(panel.at for panel in panels) else None


def quality_figure(report: Report) -> Figure | None:
    """The primary metric against what is left of a model, with 95% intervals of the difference.

    That is the share of heads, or of multiply-adds where neurons were removed (`facts.left`).

    None where fewer than two variants were compared with the dense model.
    """
    metric = facts.primary_metric(report)
    compared = [variant for variant in report.variants if facts.comparison(variant, metric)]
    if len(compared) < 2:
        return None
    label, left = facts.left(compared)
    at = {name: (100 * share, None) for name, share in left.items()}
    note = "bars: 95% interval of the difference from dense"
    return _draw_quality(report, [_Panel(f"{label} (%)", note, {**at})])


def throughput_figure(report: Report) -> Figure | None:
    """Sentences per second against batch size for every model; None without timings."""
    sizes = facts.batch_sizes(report)
    if not sizes:
        return None
    timed = [
        (name, rows)
        for model in facts.models(report)
        if (rows := facts.timings(report, name := model.name))
    ]
    looks = _looks(report)
    figure, (axes,) = _panels(1, len(timed))
    handles = []
    for name, rows in timed:
        handles += axes.plot(
            [row.batch_size for row in rows],
            [row.sentences_per_second for row in rows],
            **looks[name].style,
            linestyle="--" if name == report.dense.name else "-",
        )
    _batch_axis(axes, sizes)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("throughput (sentences/s)")
    _legend(figure, handles, [looks[name].name for name, _ in timed])
    return figure


def speedup_figure(report: Report) -> Figure | None:
    """Speed-up over dense with intervals beside the ratio of multiply-adds; None without any."""
    timed = [(v, rows) for v in report.variants if (rows := facts.with_speedup(report, v))]
    if not timed:
        return None
    looks = _looks(report)
    counted = any(row.macs_ratio is not None for _, rows in timed for row in rows)
    figure, (axes,) = _panels(1, len(timed) + 1 + counted)
    handles = [axes.axhline(1, color=DENSE, linestyle="--", linewidth=1.2)]
    names = [looks[report.dense.name].name]
    for i, (variant, rows) in enumerate(timed):
        # Beside each other rather than on top of each other, by 4% of a batch size per variant.
        shift = 1.04 ** (i - (len(timed) - 1) / 2)
        handles.append(_draw_speedups(axes, rows, looks[variant.name], shift))
        if not variant.base:  # other precisions multiply as often
            _draw_ratios(axes, rows, looks[variant.name], shift)
        names.append(looks[variant.name].name)
    if counted:
        handles += axes.plot([], [], **_RATIO_LINE, color=INK, marker="o")
        names.append("ratio of multiply-adds")
    _batch_axis(axes, facts.batch_sizes(report))
    axes.set_ylabel("speed-up over dense (ratio)")
    axes.set_title("bars: 95% interval", loc="left", fontsize=9)
    _legend(figure, handles, names)
    return figure


def _draw_speedups(axes: Axes, rows: Sequence[Timing], look: Look, shift: float) -> Line2D:
    """One variant's speed-ups with intervals; their line."""
    x = [row.batch_size * shift for row in rows]
    for place, row in zip(x, rows, strict=True):
        _error_bar(axes, place, row.speedup_interval, look.color)
    measured = [math.nan if row.speedup is None else row.speedup for row in rows]
    return axes.plot(x, measured, **look.style)[0]


def _draw_ratios(axes: Axes, rows: Sequence[Timing], look: Look, shift: float) -> None:
    """One model's ratios of multiply-adds, dotted."""
    x = [row.batch_size * shift for row in rows]
    ratios = [math.nan if row.macs_ratio is None else row.macs_ratio for row in rows]
    axes.plot(x, ratios, **_RATIO_LINE, color=look.color, marker=look.marker)


@dataclass(frozen=True)
class Plot:
    """One picture of the report: what draws it, its name for those who cannot see it, its caption.

    Args:
        draw: inside `plot_style`; None where the report has nothing to draw.
    """

    draw: Callable[[Report], Figure | None]
    title: str
    caption: str


# In the order of importance: the first one leads the page.
PLOTS: dict[str, Plot] = {
    "tradeoff": Plot(
        tradeoff_figure,
        "Quality against measured speed of all builds; the tables of quality and throughput have "
        "the numbers",
        "Quality against measured speed: better is up and to the right. The dashed line is the "
        "quality of the dense model.",
    ),
    "quality": Plot(
        quality_figure,
        "Quality against what is left of the models; the table of quality has the numbers",
        "The dashed line is the dense model.",
    ),
    "throughput": Plot(
        throughput_figure,
        "Throughput against batch size; the table of throughput has the numbers",
        "Sentences per second; the models were timed in turns.",
    ),
    "speedup": Plot(
        speedup_figure,
        "Speed-up and ratio of multiply-adds; the table of throughput has the numbers",
        "Speed-up measured, and the ratio of multiply-adds (dotted, hollow).",
    ),
}
PLOT_FORMATS = (".png", ".svg")
PLOT_TITLE = "compress: report"  # in the files, to know them by


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    """The plots that the report has data for, by name, each in its style until the next one."""
    for name, plot in PLOTS.items():
        with plot_style(name):
            figure = plot.draw(report)
            if figure is not None:
                yield name, figure


def save_plots(report: Report, directory: Path) -> list[Path]:
    """Write each plot the report has data for as `NAME.png` (200 dpi) and `NAME.svg`.

    Names are those of `PLOTS`; the background is white, so they read on any page.
    """
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
