"""`compress report`: render one or several reports again, or side by side."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import CompressError, InputError

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
    _require_ours(output)
    combined = combine([load_report(path) for path in reports])
    written = write_reports(combined, output, formats or DEFAULT_RENDERERS)
    if plots:
        written += save_plots(combined, output)
    console.message("wrote " + ", ".join(str(path) for path in written))
    console.result(
        short_table(combined), {"written": [str(path) for path in written], **summary(combined)}
    )
    return 0


def _require_ours(directory: Path) -> None:
    """Refuse to replace files of these names where no report of ours stands beside them."""
    from compressor.report import RENDERERS
    from compressor.report.junit import is_junit
    from compressor.report.plots import FIGURES
    from compressor.report.schema import load_report

    names = [renderer.file for renderer in RENDERERS.values()]
    names += [f"{figure}.{suffix}" for figure in FIGURES for suffix in ("png", "svg")]
    there = [name for name in names if (directory / name).exists()]
    if not there or is_junit(directory / RENDERERS["junit"].file):
        return
    if any(_has_title(directory / RENDERERS[name].file) for name in ("markdown", "html")):
        return
    try:
        load_report(directory / RENDERERS["json"].file)
    except CompressError as error:
        raise InputError(
            f"{directory / there[0]} exists, and no report of compress is beside it; choose "
            "another --output, or remove it",
            id="output-not-ours",
        ) from error


def _has_title(path: Path) -> bool:
    """Whether a page or a Markdown file starts as a report does."""
    try:
        with path.open(encoding="utf-8") as file:
            return bool(_TITLE.search(file.read(TITLE_WITHIN)))
    except (OSError, ValueError):
        return False
