"""`compress gate`: does a report meet the rules? Exit status 1 exactly when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import UsageError
from compressor.pipeline.recipe import GateRequest


def register(app: typer.Typer) -> None:
    o.add_command(app, "gate", gate, GateRequest)


def gate(
    request: GateRequest,
    report: Annotated[Path, typer.Argument(help="A report.json.")],
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Also write the outcomes as JUnit XML.")
    ] = None,
) -> int:
    """Check a report against quality and speed rules."""
    from compressor.files import require_file, write_at_once
    from compressor.manifest import require_unchanged_report, update_manifest
    from compressor.report import render
    from compressor.report.junit import is_junit
    from compressor.report.rules import check, exit_status, parse_rules
    from compressor.report.schema import load_report
    from compressor.report.sentences import outcome_line

    rules = parse_rules(request.gate.max_drop, request.gate.min_speedup)
    if not rules:
        raise UsageError(
            "give at least one rule: --max-drop bleu=0.5 or --min-speedup 1.1@16", id="rule-missing"
        )
    if junit is not None:
        require_file(junit, "a JUnit file", is_junit, "--junit")
    if request.verify:
        require_unchanged_report(report)
    loaded = load_report(report)
    outcomes = check(loaded, rules)
    if junit is not None:
        judged = loaded.model_copy(update={"gate": outcomes})
        digest = write_at_once(junit, render(judged, "junit"))
        update_manifest(junit.parent, {junit.name: digest})
    met = all(outcome.met for outcome in outcomes)
    console.result(
        "\n".join(map(outcome_line, outcomes)),
        {"met": met, "outcomes": [outcome.model_dump() for outcome in outcomes]},
    )
    return exit_status(outcomes)
