"""`compress demo`: the whole context on the translator that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.run import execute


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory to write to.")] = Path(
        "demo-out"
    ),
    keep: o.Keep = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> int:
    """Compress the bundled English-German translator, keeping 60 % of its heads."""
    from compressor import example
    from compressor.pipeline.recipe import build_recipe

    recipe = build_recipe(
        {
            "model": str(example.model()),
            "calibration": str(example.calibration()),
            "test": str(example.test()),
            "keep": keep or ["0.6"],
            "method": "second-order",
            "recover": "reconstruct",
            "batch_size": [1, 16, 64],
            "bench_seconds": 2.0,
        }
    )
    return execute(recipe, output)
