"""`compress report`: render one or several reports again, or side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console


def register(app: typer.Typer) -> None:
    app.command("report")(report)


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
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> int:
    """Write report files (Markdown, HTML, JUnit, plots) from one or several report.json."""
    from compressor.outputs import require_directory
    from compressor.report import DEFAULT_RENDERERS, write_reports
    from compressor.report.combine import combine
    from compressor.report.plots import save_plots
    from compressor.report.schema import load_report
    from compressor.report.summary import short_table, summary

    require_directory(output)
    combined = combine([load_report(path) for path in reports])
    written = write_reports(combined, output, formats or DEFAULT_RENDERERS)
    if plots:
        written += save_plots(combined, output)
    console.say("wrote " + ", ".join(str(path) for path in written))
    console.result(
        short_table(combined), {"written": [str(path) for path in written], **summary(combined)}
    )
    return 0
