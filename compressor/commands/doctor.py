"""`compress doctor`: versions, providers, and what clashes."""

from __future__ import annotations

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import EnvironmentProblem


@o.command()
def doctor() -> int:
    """Show versions, hardware and execution providers; exit status 3 if packages clash."""
    from compressor.throughput.diagnosis import diagnose

    diagnosis = diagnose()
    lines = [f"{name:<20}{value}" for name, value in diagnosis.versions.items()]
    lines += ["", *(f"{name:<20}{value}" for name, value in diagnosis.hardware.items()), ""]
    lines += [f"provider {name}: {state}" for name, state in diagnosis.providers.items()]
    lines += [f"problem: {problem}" for problem in diagnosis.problems]
    if not diagnosis.problems:
        lines.append("no problems found")
    if diagnosis.problems and console.as_json:
        raise EnvironmentProblem("; ".join(diagnosis.problems), id="packages-clash")
    console.result("\n".join(lines), diagnosis.as_dict())
    return EnvironmentProblem.exit_code if diagnosis.problems else 0
