"""`compress inspect`: what is in a checkpoint; `compress doctor`: what is on this machine."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import EnvironmentProblem
from compressor.options.requests import InspectRequest
from compressor.options.sections import ModelSection

if TYPE_CHECKING:
    from compressor.pipeline.inspection import Inspection, PartFacts


@o.command(InspectRequest, example="compress inspect MODEL")
def inspect(
    request: InspectRequest,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Checkpoint: a local directory or a hub id.")
    ],
) -> int:
    """Show heads, neurons, embeddings, what they cost, and how much is in no head or neuron."""
    from compressor.pipeline.inputs import load
    from compressor.pipeline.inspection import inspect_checkpoint
    from compressor.report.numbers import join

    section = ModelSection(path=model, task=request.task, **request.access.access())
    facts = inspect_checkpoint(load(section, dense=False, answers=False))
    fixed = sum(part.parameters for part in facts.parts if part.of is None)
    shares = [f"{x.fixed_share:.1%} at {x.batch_size}x{x.source_tokens}" for x in facts.shapes]
    lines = [
        f"{facts.model}: {facts.model_type}, {facts.task}, "
        f"{facts.parameters:,} parameters stored as {facts.dtype}",
        "",
        _parts(facts),
        "",
        "share: of the parameters; macs: of the multiply-adds at batch size x tokens per row",
        "",
        f"In no head or neuron: {fixed / facts.parameters:.1%} of the parameters, and of the "
        f"multiply-adds {join(shares)}",
        *_next(facts, model, request.task),
    ]
    console.result("\n".join(lines), asdict(facts))
    return 0


def _parts(facts: Inspection) -> str:
    from compressor.report.table import columns, render_text

    rows = []
    for part in facts.parts:
        parameters, share = f"{part.parameters:,}", f"{part.parameters / facts.parameters:.1%}"
        if part.name == "vocabulary" and facts.tied:
            parameters, share = "(embeddings)", ""
        macs = [f"{x:.1%}" for x in part.macs_share]
        rows.append([part.name, _units(part), parameters, share, *macs])
    shapes = [f"macs {shape.batch_size}x{shape.source_tokens}" for shape in facts.shapes]
    return render_text(columns("part, units", "parameters", "share", *shapes), rows)


def _units(part: PartFacts) -> str:
    """`6 x 8 = 48 heads of 64`; each sublayer's count where they differ."""
    if part.of is None:
        return ""
    even = len(set(part.units)) == 1
    counts = f"{len(part.units)} x {part.units[0]:,}" if even else " ".join(map(str, part.units))
    width = f" of {part.unit_width}" if part.of == "heads" else ""
    return f"{counts} = {sum(part.units):,} {part.of}{width}"


def _next(facts: Inspection, model: str, task: str | None) -> list[str]:
    """The least that `--macs` can reach, and a command to go on with; empty for a pruned model."""
    shares = [(shape.source_tokens, shape.least_share) for shape in facts.shapes]
    least = [(tokens, share) for tokens, share in shares if share is not None]
    if not least:
        return []
    reached = ", ".join(f"{_round_up(share):.2f} at {tokens}" for tokens, share in least)
    share = max(0.5, min(0.9, _round_up(max(share for _, share in least) + 0.05)))
    words = ["compress", "run", "-m", model, "-t", task or facts.task, "--macs", f"{share:g}"]
    return [
        f"Least that --macs can reach, by tokens per row: {reached}; a run counts at the lengths "
        "of its rows",
        "",
        f"Next: {shlex.join(words)} --calibration ROWS --test ROWS -o out",
    ]


def _round_up(share: float) -> float:
    return math.ceil(share * 100) / 100


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
