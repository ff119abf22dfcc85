"""`compress report`: render one or several reports again, or side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import CompressError

TITLE_WITHIN = 1000  # characters from the start
_TITLE = re.compile(r"\A# Compression report: |<title>Compression report: ")


def register(app: typer.Typer) -> None:
    o.add_command(app, "report", report)


def report(
    reports: Annotated[list[Path], typer.Argument(help="report.json files of the same model.")],
    output: o.Output,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="json, markdown, html, junit; default: the first three."),
    ] = None,
    plots: Annotated[
        bool, typer.Option("--plots", help="Also write the plots as PNG and SVG files.")
    ] = False,
) -> int:
    """Write report files (Markdown, HTML, JUnit, plots) from one or several report.json."""
    from compressor.files import require_directory
    from compressor.report import DEFAULT_RENDERERS, write_reports
    from compressor.report.combine import combine
    from compressor.report.plots import save_plots
    from compressor.report.schema import load_report
    from compressor.report.summary import short_table, summary

    require_directory(output)
    _require_ours(output, formats or DEFAULT_RENDERERS, plots)
    combined = combine([load_report(path) for path in reports])
    written = write_reports(combined, output, formats or DEFAULT_RENDERERS)
    if plots:
        written += save_plots(combined, output)
    console.message("wrote " + ", ".join(str(path) for path in written))
    console.result(
        short_table(combined), {"written": [str(path) for path in written], **summary(combined)}
    )
    return 0


def _require_ours(directory: Path, formats: Sequence[str], plots: bool) -> None:
    """Refuse to replace files that are not reports, each by itself, before anything is made."""
    from compressor.files import require_file
    from compressor.report import RENDERERS
    from compressor.report.junit import is_junit
    from compressor.report.plots import FIGURES, is_plot

    kinds = {"json": _is_report, "markdown": _has_title, "html": _has_title, "junit": is_junit}
    for name in formats:
        if name in RENDERERS:  # others are refused later
            require_file(directory / RENDERERS[name].file, "a report", kinds[name])
    if plots:
        for figure in FIGURES:
            for suffix in ("png", "svg"):
                require_file(directory / f"{figure}.{suffix}", "a plot of a report", is_plot)


def _is_report(path: Path) -> bool:
    from compressor.report.schema import load_report

    try:
        load_report(path)
    except CompressError:
        return False
    return True


def _has_title(path: Path) -> bool:
    """Whether a page or a Markdown file starts as a report does."""
    try:
        with path.open(encoding="utf-8") as file:
            return bool(_TITLE.search(file.read(TITLE_WITHIN)))
    except (OSError, ValueError):
        return False
