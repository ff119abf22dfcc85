"""The result of a study, as JSON, Markdown, text for a terminal, and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.report.markdown import bullets, escape, render_table
from compressor.report.plots import PLOT_FORMATS, save_figure
from compressor.report.table import Column, ReportTable
from compressor.report.text_table import render_table as text_of
from compressor.storage import staging
from compressor.storage.files import require_directory, write_at_once, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREFIX = "study-"


@dataclass(frozen=True)
class Result:
    """The result of a study.

    Args:
        title: of the Markdown page.
        data: all numbers, for the JSON file.
        sentences: the conclusions from the tables.
        tables: shown on the terminal and on the page.
        details: longer tables, on the page alone.
    """

    title: str
    data: dict[str, Any]
    sentences: list[str]
    tables: list[ReportTable]
    figure: Figure
    details: Sequence[ReportTable] = ()


def table(
    caption: str, titles: str, rows: Sequence[tuple[str, ...]], texts: int = 1
) -> ReportTable:
    """A table with comma-separated titles; the first `texts` columns hold no numbers."""
    columns = tuple(Column(t, numeric=i >= texts) for i, t in enumerate(titles.split(", ")))
    return ReportTable(key="", caption=caption, columns=columns, rows=tuple(rows))


def require_output(output: Path, study: str) -> None:
    """Check that a study can be written to a directory, which may hold studies of other kinds.

    Raises:
        InputError: it holds something else or this study, or cannot be written.
    """
    require_directory(output)
    for path in sorted(output.iterdir()) if output.exists() else ():
        # The JSON file is written last: without it the other three are of a study that was killed.
        is_done = path.name == f"{PREFIX}{study}.json"
        if is_done or not path.name.startswith((PREFIX, staging.PREFIX)):
            raise InputError(
                f"{output} holds {path.name} already; choose another --output",
                id="output-not-empty",
            )


def write_result(result: Result, study: str, output: Path) -> None:
    """Write all four files of a study; the plot in the style that is set."""
    stem = output / f"{PREFIX}{study}"
    for suffix in PLOT_FORMATS:
        save_figure(result.figure, stem.with_suffix(suffix))
    plot = f"![{stem.name}.png]({stem.name}.png)"
    blocks = [f"# {escape(result.title)}", *bullets(result.sentences), plot]
    for shown in (*result.tables, *result.details):
        blocks += render_table(shown)
    write_at_once(stem.with_suffix(".md"), "\n\n".join(blocks) + "\n")
    write_json(stem.with_suffix(".json"), result.data)


def render_text(result: Result) -> str:
    """The sentences and the short tables, for a terminal."""
    blocks = ["\n".join(result.sentences), tables_as_text(result.tables)]
    return "\n\n".join(filter(None, blocks))


def tables_as_text(tables: Sequence[ReportTable]) -> str:
    """Tables with their captions, for a terminal."""
    return "\n\n".join(f"{x.caption}\n{text_of(x.columns, x.rows)}" for x in tables)
