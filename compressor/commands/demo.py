"""`compress demo`: the whole journey on the translator that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.run import execute
from compressor.request.recipe import Recipe, make_recipe

# The smallest share, in tenths, that loses less than one BLEU without training (docs/results.md).
MACS = "0.8"


@o.command()
def demo(
    output: o.Output = Path("demo-out"),
    macs: Annotated[str, typer.Option("--macs", help="Share of the multiply-adds to keep.")] = MACS,
) -> int:
    """Compress the bundled English-German translator: fewer heads and neurons, and int8."""
    return execute(demo_recipe(macs), output)


def demo_recipe(macs: str = MACS) -> Recipe:
    """What the demo runs, as the options of `compress run`."""
    from compressor.request import example

    return make_recipe(
        model=example.model(),
        calibration=example.calibration(),
        test=example.test(),
        macs=macs,
        precision="fp32,int8",
        batch_size="1,16,64",
        bench_seconds=2.0,
        threads=1,
    )
