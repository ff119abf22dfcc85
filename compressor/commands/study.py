"""`compress study`: what the heads of a model do, and which of them it needs."""

from __future__ import annotations

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.study.options import STUDIES, StudyRequest


def _run(request: StudyRequest, output: o.Output) -> int:
    """Run one study."""
    from compressor.study.run import run_study

    result = run_study(request, output, console)
    console.message(f"\nstudy: {output / f'study-{request.name}.md'}\n")
    console.result(result.text(), {"output": str(output), **result.data})
    return 0


study = o.CommandGroup(
    "Analyze the heads of a model; writes study-NAME.json, .md, .png and .svg.",
    {
        name: o.Command(_run, request, help=request.__doc__, example=request.example)
        for name, request in STUDIES.items()
    },
)
