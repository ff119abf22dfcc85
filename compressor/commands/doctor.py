"""`compress doctor`: what is there, what is absent and why, and what clashes."""

from __future__ import annotations

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import EnvironmentProblem


@o.command()
def doctor() -> int:
    """Show what is installed and what is absent: engines, devices; status 3 for a problem."""
    from compressor.throughput.diagnosis import diagnose

    found, problems = diagnose()
    titles = {"engines": "engines:", "providers": "devices of onnxruntime:"}
    titles["optional"] = "optional packages:"
    lines = []
    for kind, facts in found.items():
        lines += [titles[kind]] if kind in titles else []
        lines += [*(f"{name:<20}{value}" for name, value in facts.items()), ""]
    lines += [f"problem: {problem}" for problem in problems] or ["no problems found"]
    if problems and console.as_json:
        raise EnvironmentProblem("; ".join(problems), id="packages-clash")
    console.result("\n".join(lines), {**found, "problems": problems})
    return EnvironmentProblem.exit_code if problems else 0
