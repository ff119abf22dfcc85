"""`compress report`: render a report again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.request.recipe import ReportRequest


@o.command(ReportRequest, example="compress report out/report.json --format html -o page")
def report(
    request: ReportRequest,
    report: Annotated[Path, typer.Argument(help="The report.json of a run.")],
    output: o.Output,
) -> int:
    """Write report files (Markdown, HTML, JUnit, plots) from a report.json."""
    from compressor.report import require_replaceable, write_reports
    from compressor.report.plots import save_plots
    from compressor.report.schema import load_report
    from compressor.report.summary import short_table, summary
    from compressor.storage.files import require_directory

    require_directory(output)
    require_replaceable(output, request.format)
    if request.plots:
        _require_plots(output)
    given = load_report(report, verify=request.verify)
    written = write_reports(given, output, request.format)
    if request.plots:
        written += save_plots(given, output)
    paths = [str(path) for path in written]
    console.message("wrote " + ", ".join(paths))
    console.result(short_table(given), {"written": paths, **summary(given)})
    return 0


def _require_plots(directory: Path) -> None:
    """Refuse to replace files that are not plots of ours, before anything is made."""
    from compressor.report.plots import PLOT_FORMATS, PLOTS, is_plot
    from compressor.storage.files import require_file

    for figure in PLOTS:
        for suffix in PLOT_FORMATS:
            require_file(directory / f"{figure}{suffix}", "a plot of a report", is_plot)
