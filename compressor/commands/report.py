"""`compress report`: render one or several reports again, or side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.report import DEFAULT_FORMATS, FORMATS


@o.command(example="compress report out/report.json --format html -o page")
def report(
    reports: Annotated[
        list[Path], typer.Argument(metavar="REPORT...", help="report.json files of the same model.")
    ],
    output: o.Output,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format", help=f"{', '.join(FORMATS)}; default: {', '.join(DEFAULT_FORMATS)}."
        ),
    ] = None,
    plots: Annotated[
        bool, typer.Option("--plots", help="Also write the plots as PNG and SVG files.")
    ] = False,
    verify: Annotated[
        bool, typer.Option(help="Check the reports against the manifest.json beside them first.")
    ] = True,
) -> int:
    """Write report files (Markdown, HTML, JUnit, plots) from one or several report.json."""
    from compressor.report import require_replaceable, write_reports
    from compressor.report.combine import combine
    from compressor.report.plots import save_plots
    from compressor.report.schema import load_report
    from compressor.report.summary import short_table, summary
    from compressor.storage.files import require_directory

    require_directory(output)
    names = formats or DEFAULT_FORMATS
    require_replaceable(output, names)
    if plots:
        _require_plots(output)
    combined = combine([load_report(path, verify=verify) for path in reports])
    written = write_reports(combined, output, names)
    if plots:
        written += save_plots(combined, output)
    console.message("wrote " + ", ".join(str(path) for path in written))
    console.result(
        short_table(combined), {"written": [str(path) for path in written], **summary(combined)}
    )
    return 0


def _require_plots(directory: Path) -> None:
    """Refuse to replace files that are not plots of ours, before anything is made."""
    from compressor.report.plots import PLOT_FORMATS, PLOTS, is_plot
    from compressor.storage.files import require_file

    for figure in PLOTS:
        for suffix in PLOT_FORMATS:
            require_file(directory / f"{figure}{suffix}", "a plot of a report", is_plot)
