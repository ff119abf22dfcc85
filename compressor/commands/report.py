"""`compress report` and `gate`: render a report again, and check that it meets rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import UsageError
from compressor.options.requests import GateRequest, ReportRequest, make_gate


@o.command(
    GateRequest,
    example="compress gate out/report.json --max-metric-drop bleu=0.5 --min-speedup 1.1@16",
)
def gate(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A report.json.")],
    typed: dict[str, Any],
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="Rules from a recipe; flags win.")
    ] = None,
) -> int:
    """Check a report against rules on quality, speed and size, and compare it with an earlier one.

    A rule on what is measured is passed or failed when its whole confidence interval says so.
    """
    from compressor.report import (
        FORMATS,
        baseline,
        ci_formats,
        render,
        require_replaceable,
        rules,
        write_reports,
    )
    from compressor.report.build_view import build_view
    from compressor.report.schema import load_report
    from compressor.report.terminal import gate_summary, gate_text
    from compressor.storage.files import require_directory, require_file, write_at_once
    from compressor.storage.outputs import update_manifest

    request = make_gate(config, **typed)
    wanted = request.gate.rules()
    junit, ci = request.junit, request.ci
    if not wanted and request.baseline is None:
        raise UsageError(
            f"give at least one rule: --{rules.MaxDropRule.option} bleu=0.5, --min-speedup 1.1@16, "
            "--max-size-mb 50, or --baseline FILE",
            id="rule-missing",
        )
    # Nothing is replaced that is not an output of this command.
    if junit is not None:
        require_file(junit, "a JUnit file", FORMATS["junit"].is_own_file, "--junit")
    if ci is not None:
        require_directory(ci, "--ci")
        require_replaceable(ci, ci_formats(), "--ci")
    judged = load_report(report, verify=request.verify)
    earlier = load_report(request.baseline, verify=request.verify) if request.baseline else None
    outcomes = rules.check(judged, wanted, request.gate.inconclusive)
    compared, changes = baseline.compare(judged, earlier) if earlier else ([], [])
    judged = judged.model_copy(update={"gate": outcomes + compared, "changes": changes})
    if ci is not None:
        write_reports(judged, ci, ci_formats())
    if junit is not None:
        digest = write_at_once(junit, render(judged, "junit"))
        update_manifest(junit.parent, {junit.name: digest})
    facts = gate_summary(judged)
    names = {"met": "gate_met", "outcomes": "gate", "verdict": "gate_verdict", "changes": "changes"}
    console.result(gate_text(build_view(judged)), {name: facts[key] for name, key in names.items()})
    return rules.exit_status(judged.gate)


@o.command(ReportRequest, example="compress report out/report.json --format html -o page")
def report(
    request: ReportRequest,
    report: Annotated[Path, typer.Argument(help="The report.json of a run.")],
    output: o.Output,
) -> int:
    """Write report files (Markdown, HTML, JUnit, plots) from a report.json."""
    from compressor.report import require_replaceable, write_reports
    from compressor.report.build_view import build_view
    from compressor.report.plots import PLOT_FORMATS, PLOTS, is_plot, save_plots
    from compressor.report.schema import load_report
    from compressor.report.terminal import short_table, summary
    from compressor.storage.files import require_directory, require_file

    require_directory(output)
    require_replaceable(output, request.format)
    plots = PLOTS if request.plots else ()
    for path in [output / f"{plot}{suffix}" for plot in plots for suffix in PLOT_FORMATS]:
        require_file(path, "a plot of a report", is_plot)
    loaded = load_report(report, verify=request.verify)
    view = build_view(loaded)
    written = write_reports(loaded, output, request.format)
    if request.plots:
        written += save_plots(view.plots, output)
    paths = [str(path) for path in written]
    console.message("wrote " + ", ".join(paths))
    console.result(short_table(view), {"written": paths, **summary(view)})
    return 0
