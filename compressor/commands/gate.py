"""`compress gate`: does a report meet the rules? Exit status 1 exactly when it does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import UsageError
from compressor.request.recipe import GateRequest, make_gate

if TYPE_CHECKING:
    from compressor.report.rule import Rule
    from compressor.report.schema import Report
    from compressor.results import Inconclusive


@o.command(
    GateRequest,
    example="compress gate out/report.json --max-metric-drop bleu=0.5 --min-speedup 1.1@16",
)
def gate(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A report.json.")],
    given: dict[str, Any],
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", help="Rules from a recipe; flags win."),
    ] = None,
) -> int:
    """Check a report against rules on quality, speed and size, and compare it with an earlier one.

    A rule on what is measured is passed or failed when its whole confidence interval says so.
    """
    from compressor.report.gate_text import change_line, outcome_line
    from compressor.report.rule_kinds import MaxDropRule
    from compressor.report.rules import exit_status
    from compressor.report.schema import load_report
    from compressor.report.summary import gate_summary
    from compressor.request.validate import gate_rules

    request = make_gate(config, **given)
    rules = gate_rules(request.gate)
    if not rules and request.baseline is None:
        raise UsageError(
            f"give at least one rule: --{MaxDropRule.option} bleu=0.5, --min-speedup 1.1@16, "
            "--max-size-mb 50, or --baseline FILE",
            id="rule-missing",
        )
    _require_outputs(request.junit, request.ci)
    newest = load_report(report, verify=request.verify)
    earlier = None
    if request.baseline is not None:
        earlier = load_report(request.baseline, verify=request.verify)
    judged = _judged(rules, request.gate.inconclusive, newest, earlier)
    _write(judged, request.junit, request.ci)
    lines = [*map(outcome_line, judged.gate), *map(change_line, judged.changes)]
    facts = gate_summary(judged)
    names = {"met": "gate_met", "outcomes": "gate", "verdict": "gate_verdict", "changes": "changes"}
    console.result("\n".join(lines), {name: facts[key] for name, key in names.items()})
    return exit_status(judged.gate)


def _judged(
    rules: Sequence[Rule], inconclusive: Inconclusive, report: Report, earlier: Report | None
) -> Report:
    """A report with what became of the rules, and of an earlier report's numbers."""
    from compressor.report.baseline import compare_reports
    from compressor.report.baseline import outcomes as regressions
    from compressor.report.rules import check

    outcomes, changes = check(report, rules, inconclusive), []
    if earlier is not None:
        outcomes += regressions(report, earlier)
        changes = compare_reports(report, earlier)
    return report.model_copy(update={"gate": outcomes, "changes": changes})


def _require_outputs(junit: Path | None, ci: Path | None) -> None:
    """Refuse to replace what is not an output of this command."""
    from compressor.report import FORMATS, ci_formats, require_replaceable
    from compressor.storage.files import require_directory, require_file

    if junit is not None:
        require_file(junit, "a JUnit file", FORMATS["junit"].is_own_file, "--junit")
    if ci is not None:
        require_directory(ci, "--ci")
        require_replaceable(ci, ci_formats(), "--ci")


def _write(judged: Report, junit: Path | None, ci: Path | None) -> None:
    from compressor.report import ci_formats, render, write_reports
    from compressor.storage.files import write_at_once
    from compressor.storage.outputs import update_manifest

    if ci is not None:
        write_reports(judged, ci, ci_formats())
    if junit is not None:
        digest = write_at_once(junit, render(judged, "junit"))
        update_manifest(junit.parent, {junit.name: digest})
