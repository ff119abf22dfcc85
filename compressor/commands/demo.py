"""`compress demo`: the whole journey on the translator that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.run import execute
from compressor.pipeline.recipe import build_recipe


def register(app: typer.Typer) -> None:
    o.add_command(app, "demo", demo)


def demo(
    output: o.Output = Path("demo-out"),
    keep: Annotated[
        list[str] | None, typer.Option("--keep", help="Heads to keep. Default: 0.6.")
    ] = None,
) -> int:
    """Compress the bundled English-German translator, keeping 60 % of its heads."""
    from compressor import example

    recipe = build_recipe(
        {
            "--model": str(example.model()),
            "--calibration": str(example.calibration()),
            "--test": str(example.test()),
            "--keep": keep or ["0.6"],
            "--method": "second-order",
            "--recover": "reconstruct",
            "--batch-size": "1,16,64",
            "--bench-seconds": 2.0,
        }
    )
    return execute(recipe, output)
