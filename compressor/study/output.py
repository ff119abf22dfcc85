"""What a study found, as JSON, Markdown, text for a terminal, and a plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.report import phrases
from compressor.report.markdown import bullets, escape, render_table
from compressor.report.plots import PLOT_FORMATS, plot_style, save_figure
from compressor.report.table import Column, ReportTable
from compressor.report.text_table import render_table as text_of
from compressor.storage.files import write_at_once, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREFIX = "study-"


@dataclass(frozen=True)
class Result:
    """What a study found.

    Args:
        title: of the Markdown page.
        data: all numbers, for the JSON file.
        sentences: the conclusions from the tables.
        tables: shown on the terminal and on the page.
        details: longer tables, on the page alone.
        draw: makes the figure.
    """

    title: str
    data: dict[str, Any]
    sentences: list[str]
    tables: list[ReportTable]
    draw: Callable[[], Figure]
    details: list[ReportTable] = field(default_factory=list)

    def with_shared_rows(self, shared: int, total: int) -> Result:
        """The result with a warning that test rows are calibration rows too."""
        warning = f"{phrases.shared_rows(shared, total)}."
        return replace(self, sentences=[*self.sentences, warning])

    def with_floor(self) -> Result:
        """The result with a warning where the metric sees nothing in the dense model's answers."""
        if not self.data.get("at_floor", False):
            return self
        warning = (
            "With all heads the metric is at its floor, what chance gives, so nothing can be "
            "concluded from what changes or does not."
        )
        return replace(self, sentences=[*self.sentences, warning])


def table(
    caption: str, titles: str, rows: Sequence[tuple[str, ...]], texts: int = 1
) -> ReportTable:
    """A table with comma-separated titles; the first `texts` columns hold no numbers."""
    columns = tuple(Column(t, numeric=i >= texts) for i, t in enumerate(titles.split(", ")))
    return ReportTable(key="", caption=caption, columns=columns, rows=tuple(rows))


def write_result(result: Result, study: str, output: Path) -> None:
    """Write all four files of a study."""
    stem = output / f"{PREFIX}{study}"
    # The name goes into the ids of the SVG, which are random without it.
    with plot_style(stem.name):
        figure = result.draw()
        for suffix in PLOT_FORMATS:
            save_figure(figure, stem.with_suffix(suffix))
    write_at_once(stem.with_suffix(".md"), render_markdown(result, f"{stem.name}.png"))
    write_json(stem.with_suffix(".json"), result.data)


def render_markdown(result: Result, plot: str) -> str:
    """The study as a page of GitHub-flavored Markdown, ending with a newline."""
    blocks = [f"# {escape(result.title)}", *bullets(result.sentences), f"![{plot}]({plot})"]
    for shown in (*result.tables, *result.details):
        blocks += render_table(shown)
    return "\n\n".join(blocks) + "\n"


def render_text(result: Result) -> str:
    """The sentences and the short tables, for a terminal."""
    blocks = ["\n".join(result.sentences)]
    for shown in result.tables:
        blocks.append(f"{shown.caption}\n{text_of(shown.columns, shown.rows)}")
    return "\n\n".join(blocks)
