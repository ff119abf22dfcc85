"""What a study found, as JSON, Markdown, text for a terminal, and a plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.report import phrases
from compressor.report.markdown import bullets, escape, render_table
from compressor.report.plots import PLOT_FORMATS, plot_style, save_figure
from compressor.report.table import Column, ReportTable
from compressor.report.text_table import render_table as text_of
from compressor.storage import staging
from compressor.storage.files import require_directory, write_at_once, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from compressor.study.inputs import StudyInputs

PREFIX = "study-"


@dataclass(frozen=True)
class Result:
    """What a study found.

    Args:
        title: of the Markdown page.
        data: all numbers, for the JSON file.
        sentences: the conclusions from the tables.
        tables: shown on the terminal and on the page.
        draw: makes the figure.
        details: longer tables, on the page alone.
    """

    title: str
    data: dict[str, Any]
    sentences: list[str]
    tables: list[ReportTable]
    draw: Callable[[], Figure]
    details: Sequence[ReportTable] = ()

    def about(self, inputs: StudyInputs) -> Result:
        """The result with what was studied, and with warnings of what it cannot show."""
        warnings, rows = [], inputs.rows
        if self.data.get("at_floor", False):
            warnings.append(
                "With all heads the metric is at its floor, what chance gives, so nothing can be "
                "concluded from what changes or does not."
            )
        if rows.shared and rows.test is not None:
            warnings.append(f"{phrases.shared_rows(rows.shared, len(rows.test.sources))}.")
        data = {**inputs.facts(), **self.data}
        return replace(self, data=data, sentences=[*self.sentences, *warnings])


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
    blocks = ["\n".join(result.sentences), tables_as_text(result.tables)]
    return "\n\n".join(filter(None, blocks))


def tables_as_text(tables: Sequence[ReportTable]) -> str:
    """Tables with their captions, for a terminal."""
    return "\n\n".join(f"{x.caption}\n{text_of(x.columns, x.rows)}" for x in tables)
