"""`compress inspect`: what is in a checkpoint; `compress doctor`: what is on this machine."""

from __future__ import annotations

import math
import shlex
import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import EnvironmentProblem
from compressor.options.requests import InspectRequest
from compressor.options.sections import ModelSection

if TYPE_CHECKING:
    from compressor.throughput.inspection import Inspection, PartFacts

VOCABULARY = "vocabulary"  # a part of models that generate texts
# Tokens of a translator from which on it is taken for one of many languages, and their share of the
# parameters from which on it is said what a pair of languages saves.
_MANY_TOKENS, _MUCH = 100_000, 0.1
_LARGER = 4  # times the parameters of what was measured, from which on that is said


@o.command(InspectRequest, example="compress inspect MODEL")
def inspect(
    request: InspectRequest,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Checkpoint: a local directory or a hub id.")
    ],
) -> int:
    """Show heads, neurons, embeddings, what they cost, what is not prunable, and where to begin."""
    from compressor.options.inputs import load
    from compressor.report.numbers import join
    from compressor.throughput.inspection import inspect_checkpoint

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
        f"Not prunable: {fixed / facts.parameters:.1%} of the parameters, and of the "
        f"multiply-adds {join(shares)}",
        *_least(facts),
        *_tokens(facts),
    ]
    suggested = [*_one_pair(facts, model), *_suggestions(facts, model, request.task)]
    for suggestion in suggested:
        lines += ["", *textwrap.wrap(suggestion.title, 100), f"    {suggestion.command}"]
    commands = {"suggestions": [asdict(suggestion) for suggestion in suggested]}
    console.result("\n".join(lines), asdict(facts) | commands)
    return 0


def _parts(facts: Inspection) -> str:
    from compressor.report.table import columns, render_text

    rows = []
    for part in facts.parts:
        parameters, share = f"{part.parameters:,}", f"{part.parameters / facts.parameters:.1%}"
        if part.name == VOCABULARY and facts.tied:
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


@dataclass(frozen=True)
class _Suggestion:
    """A command to go on with."""

    title: str
    command: str


def _one_pair(facts: Inspection, model: str) -> list[_Suggestion]:
    """What a translator of many languages has for others than a pair, and how to be rid of it."""
    share = facts.token_parameters / facts.parameters
    writes = any(part.name == VOCABULARY for part in facts.parts)
    if not writes or share < _MUCH or not (facts.languages > 1 or facts.tokens >= _MANY_TOKENS):
        return []
    said = ["--source-language", "CODE"] if facts.says_source else []
    said += ["--target-language", "CODE"] if facts.languages > 1 else []
    words = ["compress", "export", "-m", model, *said, "--source-text", "FILE", "--target-text"]
    many = f"{facts.languages} languages" if facts.languages > 1 else "many languages"
    return [
        _Suggestion(
            f"One pair of {many}: {facts.tokens:,} tokens have {share:.0%} of the parameters, and "
            "texts like yours need a part of them:",
            shlex.join([*words, "FILE", "--precision", "fp32,int8", "-o", "pair"]),
        )
    ]


def _suggestions(facts: Inspection, model: str, task: str | None) -> list[_Suggestion]:
    """First runs of a model: without training, and with text to learn from where that paid.

    What is measured is what was for a model of the task, by `Task.first_runs`, with what this
    machine has. None for a pruned model, or for a task of which nothing is known.
    """
    from compressor.tasks import TASKS

    runs = TASKS[facts.task].first_runs
    least = [shape.least_share for shape in facts.shapes if shape.least_share is not None]
    if runs is None or not least:
        return []
    words = ["compress", "run", "-m", model, "-t", task or facts.task]
    built = _builds(facts)
    rows = ["--calibration", "ROWS", "--test", "ROWS", *built, "-o", "out"]
    learn = ["--recover", "reconstruct+distill", "--distill-text", "FILE"]
    found = []
    for title, tried, options in (
        ("Next, without training", runs.untrained, []),
        ("Deeper, with unlabeled text to learn from", runs.distilled, learn),
    ):
        if tried is not None:
            share = max(tried.macs, min(0.95, _round_up(max(least) + 0.05)))
            command = shlex.join([*words, "--macs", f"{share:g}", *options, *rows])
            seen = f"with {tried.macs:g} of the multiply-adds: {tried.text}"
            if facts.parameters > _LARGER * tried.parameters:
                seen += f"; no trained model of {facts.parameters / 1e6:,.0f} million parameters"
                seen += " was measured"
            found.append(_Suggestion(f"{title} ({seen}):", command))
    return found


def _builds(facts: Inspection) -> list[str]:
    """Precisions and engines that are worth measuring on this machine."""
    from importlib.util import find_spec

    from compressor.runtime.engines import ENGINES, ONNXRUNTIME, engine_class
    from compressor.throughput.hardware import describe

    machine = describe()
    if "gpu" in machine and _works_on_cuda():
        return ["--device", "cuda", "--precision", "fp32,fp16"]
    kind = "encoder-decoder" if any(x.name == VOCABULARY for x in facts.parts) else "encoder"
    engines = [ONNXRUNTIME]
    # Other engines that read the same graphs were faster in bfloat16, where the processor has that.
    if {"amx_bf16", "avx512_bf16"} & set(machine.get("instructions", "").split()):
        for name, engine in ((name, engine_class(name)) for name in ENGINES):
            reads_graphs = not engine.folder and not engine.dense_only and kind in engine.kinds
            if name != ONNXRUNTIME and reads_graphs and find_spec(engine.package) is not None:
                engines.append(name)
    chosen = ["--engines", ",".join(engines)] if len(engines) > 1 else []
    return ["--precision", "fp32,int8", *chosen]


def _works_on_cuda() -> bool:
    from compressor.runtime.session import choose_device

    return choose_device("auto") == "cuda"


def _least(facts: Inspection) -> list[str]:
    """A line with the least that `--macs` can ask for; none for a pruned model."""
    reached = [
        f"{_round_up(shape.least_share):g} at {shape.source_tokens}"
        for shape in facts.shapes
        if shape.least_share is not None
    ]
    shares, lengths = ", ".join(reached), "a run counts at the lengths of its rows"
    return [f"Smallest --macs, by tokens per row: {shares}; {lengths}"] if reached else []


def _tokens(facts: Inspection) -> list[str]:
    """A line with what layers hand on; none where they hand on all tokens."""
    from compressor.report.sentences import tokens_handed_on

    if not facts.handed_on:
        return []
    return [f"Hands on {tokens_handed_on(facts.handed_on)}, as the multiply-adds count"]


def _round_up(share: float) -> float:
    """Up to two digits, so that it can be asked for: 0.1234 as 0.13, 0.00071 as 0.00071."""
    step = 10.0 ** max(-12, math.floor(math.log10(max(share, 1e-12))) - 1)
    return round(math.ceil(share / step - 1e-9) * step, 14)


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
