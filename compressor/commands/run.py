"""`compress run`, a checkpoint in and a measured artifact out; `compress demo`, two such runs."""

from __future__ import annotations

import gc
import shlex
import sys
from pathlib import Path
from typing import Any

import compressor
from compressor import example
from compressor.commands import options as o
from compressor.commands.console import console
from compressor.options.recipe import Recipe
from compressor.options.requests import make_recipe
from compressor.parallel import accelerate_options, launch

# Shares of the multiply-adds that lose little without training; how much, the demo measures.
CLASSIFIER_MACS = "0.25"
TRANSLATOR_MACS = "0.8"
CASES = {"classifier": "a good case", "translator": "a hard one without training"}


@o.command(
    Recipe,
    example="compress run -m MODEL --calibration valid.tsv --test test.tsv --macs 0.5 -o out",
)
def run(output: o.Output, typed: dict[str, Any], config: o.Config = None) -> int:
    """Score heads and neurons, remove some, export to ONNX, check, evaluate, time, and report."""
    recipe = _as_launched(make_recipe(config, **typed))
    launch.start(recipe.device, accelerate_options.wants_shards())
    launch.require_same_versions(compressor.__version__)
    from compressor.pipeline.run import run as run_pipeline
    from compressor.report.build_view import build_view
    from compressor.report.rules import exit_status
    from compressor.report.terminal import run_text, summary

    gc.freeze()  # or each step ends with a search for garbage in all that was imported
    command = shlex.join(["compress", *sys.argv[1:]])
    report = run_pipeline(recipe, output, command, console)
    view = build_view(report, output)
    console.message("")
    console.result(run_text(view, output), {"output": str(output), **summary(view)})
    launch.finish()
    return exit_status(report.gate)


def _as_launched(recipe: Recipe) -> Recipe:
    """The recipe with what a launcher's configuration says, where the recipe leaves it open."""
    precision = accelerate_options.training_precision()
    recovery = [step.with_precision(precision) for step in recipe.recovery]
    device = "cpu" if recipe.device == "auto" and accelerate_options.wants_cpu() else recipe.device
    return recipe.model_copy(update={"recovery": recovery, "device": device})


@o.command()
def demo(output: o.Output = Path("demo-out")) -> int:
    """Compress the two bundled models, a classifier and a translator: a good and a hard case."""
    from compressor.pipeline.run import run
    from compressor.report.build_view import build_view
    from compressor.report.terminal import measured_tables, summary, verdict

    gc.freeze()  # or each step ends with a search for garbage in all that was imported
    tables: list[str] = []
    verdicts: list[str] = []
    results = {}
    for number, (name, recipe) in enumerate(demo_recipes().items(), start=1):
        directory = output / name
        console.message(f"\n{number} of 2: the {name}")
        command = shlex.join(["compress", "demo", "--output", str(output)])
        view = build_view(run(recipe, directory, command, console), directory)
        measured = "\n\n".join(measured_tables(view))
        tables.append(f"The {name} ({directory / 'report.html'}):\n\n{measured}")
        verdicts.append(f"The {name}, {CASES[name]}:\n{verdict(view)}")
        results[name] = {"output": str(directory), **summary(view)}
    console.message("")
    console.result("\n\n".join([*tables, *verdicts]), results)
    return 0


def demo_recipes() -> dict[str, Recipe]:
    """The demo's runs: name of the case -> its recipe."""
    models = {
        "classifier": (*example.help_desk(), CLASSIFIER_MACS),
        "translator": (example.model(), example.calibration(), example.test(), TRANSLATOR_MACS),
    }
    usual: dict[str, Any] = {"precision": ["fp32,int8"], "batch_size": [1, 16]}
    usual |= {"bench_seconds": 1.0, "threads": 1}
    return {
        name: make_recipe(model=model, calibration=calibration, test=test, macs=macs, **usual)
        for name, (model, calibration, test, macs) in models.items()
    }
