"""`compress doctor`: what is there, what is absent and why, and what clashes."""

from __future__ import annotations

from dataclasses import asdict

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import EnvironmentProblem


@o.command()
def doctor() -> int:
    """Show what is installed and what is absent: engines, devices; status 3 for a problem."""
    from compressor.throughput.diagnosis import diagnose

    diagnosis = diagnose()
    lines = [f"{name:<20}{value}" for name, value in diagnosis.versions.items()]
    for title, facts in (
        ("", diagnosis.hardware),
        ("engines", diagnosis.engines),
        ("devices of onnxruntime", diagnosis.providers),
        ("optional packages", diagnosis.optional),
    ):
        lines += ["", *([f"{title}:"] if title else [])]
        lines += [f"{name:<20}{value}" for name, value in facts.items()]
    lines += ["", *(f"problem: {problem}" for problem in diagnosis.problems)]
    if not diagnosis.problems:
        lines.append("no problems found")
    if diagnosis.problems and console.as_json:
        raise EnvironmentProblem("; ".join(diagnosis.problems), id="packages-clash")
    console.result("\n".join(lines), asdict(diagnosis))
    return EnvironmentProblem.exit_code if diagnosis.problems else 0
