"""What a study found, as JSON, Markdown, text for a terminal, and a plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.files import require_directory, write_json
from compressor.pipeline.workspace import STATE
from compressor.report import sentences
from compressor.report.markdown import bullets, escape, render_table
from compressor.report.tables import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from compressor.study.job import Job

PREFIX = "study-"
SUFFIXES = (".json", ".md", ".png", ".svg")


@dataclass(frozen=True)
class Result:
    """What a study found.

    Args:
        title: of the Markdown page.
        data: everything, as JSON.
        sentences: what the tables come to.
        tables: shown everywhere.
        details: longer tables, for the Markdown page alone.
        draw: makes the figure.
    """

    title: str
    data: dict[str, Any]
    sentences: list[str]
    tables: list[Table]
    draw: Callable[[], Figure]
    details: list[Table] = field(default_factory=list)


def table(caption: str, titles: str, rows: Sequence[tuple[str, ...]], texts: int = 1) -> Table:
    """A table with comma-separated titles; the first `texts` columns hold no numbers."""
    columns = tuple(Column(t, numeric=i >= texts) for i, t in enumerate(titles.split(", ")))
    return Table(key="", caption=caption, columns=columns, rows=tuple(rows))


def require_ours(output: Path) -> None:
    """Refuse a directory that holds something else than studies.

    Raises:
        InputError: a directory with other things in it, or it cannot be written.
    """
    require_directory(output)
    if not output.exists() or any((output / STATE).glob(f"{PREFIX}*")):
        return
    if any(output.iterdir()):
        raise InputError(f"{output} is not empty and holds no study; choose another --output")


def with_shared_rows(result: Result, job: Job) -> Result:
    """The result with a sentence more if test rows are calibration rows too."""
    if not job.shared_rows or job.test is None:
        return result
    sentence = f"{sentences.shared_rows(job.shared_rows, len(job.test.sources))}."
    return replace(result, sentences=[*result.sentences, sentence])


def write_result(result: Result, study: str, output: Path) -> None:
    """Write all four files of a study."""
    from compressor.report.plots import plot_style

    stem = output / f"{PREFIX}{study}"
    with plot_style(stem.name):
        figure = result.draw()
        figure.savefig(stem.with_suffix(".png"), facecolor="white", dpi=200)
        # No date, so that the same findings draw the same file.
        figure.savefig(stem.with_suffix(".svg"), facecolor="white", metadata={"Date": None})
    text = render_markdown(result, f"{stem.name}.png")
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    write_json(stem.with_suffix(".json"), result.data)


def render_markdown(result: Result, plot: str) -> str:
    """The study as a page of GitHub-flavoured Markdown, ending with a newline."""
    blocks = [f"# {escape(result.title)}", *bullets(result.sentences), f"![{plot}]({plot})"]
    for found in (*result.tables, *result.details):
        blocks += render_table(found)
    return "\n\n".join(blocks) + "\n"


def render_text(result: Result) -> str:
    """The sentences and the short tables, for a terminal."""
    blocks = ["\n".join(result.sentences)]
    blocks += [f"{found.caption}\n{_columns(found)}" for found in result.tables]
    return "\n\n".join(blocks)


def _columns(found: Table) -> str:
    rows = [tuple(column.title for column in found.columns), *found.rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            text.rjust(width) if column.numeric else text.ljust(width)
            for text, width, column in zip(row, widths, found.columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
