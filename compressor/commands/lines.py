"""Arguments of the commands that stream lines through an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Artifact = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="What `compress run` or `compress export` wrote, with onnx/ in it."
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", help="One text per line; standard input by default, or -."),
]
LinesOutput = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="A new file, instead of standard output."),
]
