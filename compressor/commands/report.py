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
    from compressor.report.plots import PLOT_FORMATS, PLOTS, is_plot, save_plots
    from compressor.report.schema import load_report
    from compressor.report.summary import short_table, summary
    from compressor.storage.files import require_directory, require_file

    require_directory(output)
    require_replaceable(output, request.format)
    plots = PLOTS if request.plots else ()
    for path in [output / f"{plot}{suffix}" for plot in plots for suffix in PLOT_FORMATS]:
        require_file(path, "a plot of a report", is_plot)
    loaded = load_report(report, verify=request.verify)
    written = write_reports(loaded, output, request.format)
    if request.plots:
        written += save_plots(loaded, output)
    paths = [str(path) for path in written]
    console.message("wrote " + ", ".join(paths))
    console.result(short_table(loaded), {"written": paths, **summary(loaded)})
    return 0
