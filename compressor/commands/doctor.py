"""`compress doctor`: versions, providers, and what clashes."""

from __future__ import annotations

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import EnvironmentProblem


@o.command()
def doctor() -> int:
    """Show versions, hardware and execution providers; exit status 3 if packages clash."""
    from compressor.throughput.diagnosis import diagnose

    found = diagnose()
    lines = [f"{name:<20}{value}" for name, value in found.versions.items()]
    lines += ["", *(f"{name:<20}{value}" for name, value in found.hardware.items()), ""]
    lines += [f"provider {name}: {state}" for name, state in found.providers.items()]
    lines += [f"problem: {problem}" for problem in found.problems]
    if not found.problems:
        lines.append("no conflicts found")
    if found.problems and console.as_json:
        raise EnvironmentProblem("; ".join(found.problems), id="packages-clash")
    console.result("\n".join(lines), found.as_dict())
    return EnvironmentProblem.exit_code if found.problems else 0
