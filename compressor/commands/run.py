"""`compress run`: a checkpoint goes in, a checked and measured artifact comes out."""

from __future__ import annotations

import gc
import shlex
import sys
from typing import Any

import compressor
from compressor.commands import options as o
from compressor.commands.console import console
from compressor.parallel import launch
from compressor.request.recipe import Recipe, make_recipe


@o.command(
    Recipe,
    example="compress run -m MODEL --calibration valid.tsv --test test.tsv --macs 0.5 -o out",
)
def run(output: o.Output, typed: dict[str, Any], config: o.Config = None) -> int:
    """Score heads and neurons, remove some, export to ONNX, check, evaluate, time, and report."""
    recipe = _as_launched(make_recipe(config, **typed))
    launch.start(recipe.device, launch.wants_shards())
    launch.require_same_versions(compressor.__version__)
    from compressor.pipeline.run import run as run_pipeline
    from compressor.report.rules import exit_status
    from compressor.report.summary import short_table, summary

    gc.freeze()  # or each step ends with a search for garbage in all that was imported
    command = shlex.join(["compress", *sys.argv[1:]])
    report = run_pipeline(recipe, output, command, console)
    console.message(f"\nreport: {output / 'report.html'}\n")
    console.result(short_table(report), {"output": str(output), **summary(report)})
    launch.finish()
    return exit_status(report.gate)


def _as_launched(recipe: Recipe) -> Recipe:
    """The recipe with what a launcher's configuration says, where the recipe leaves it open."""
    precision = launch.training_precision()
    recovery = [step.with_precision(precision) for step in recipe.recovery]
    device = "cpu" if recipe.device == "auto" and launch.wants_cpu() else recipe.device
    return recipe.model_copy(update={"recovery": recovery, "device": device})
