"""`compress study`: what the heads of a model do, and which of them it needs."""

from __future__ import annotations

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.study.options import STUDIES, StudyRequest


def register(app: typer.Typer) -> None:
    studies = typer.Typer(
        help="Analyze the heads of a model; writes study-NAME.json, .md, .png and .svg.",
        no_args_is_help=True,
    )
    for name, request in STUDIES.items():
        o.add_command(studies, name, study, request, help=str(request.__doc__))
    app.add_typer(studies, name="study")


def study(request: StudyRequest, output: o.Output) -> int:
    """Run one study."""
    from compressor.study import run_study
    from compressor.study.output import render_text

    result = run_study(request, output, console)
    console.message(f"\nstudy: {output / f'study-{request.name}.md'}\n")
    console.result(render_text(result), {"output": str(output), **result.data})
    return 0
