"""`compress demo`: whole runs on the two small models that come with the package."""

from __future__ import annotations

import gc
from pathlib import Path

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.request.recipe import Recipe, make_recipe

# Shares of the multiply-adds that lose little without training; how much, the demo measures.
CLASSIFIER_MACS = "0.3"
TRANSLATOR_MACS = "0.8"
CASES = {"classifier": "a good case", "translator": "a hard one without training"}


@o.command()
def demo(output: o.Output = Path("demo-out")) -> int:
    """Compress the two bundled models, a classifier and a translator: a good and a hard case."""
    from compressor.pipeline.run import run
    from compressor.report.summary import short_table, summary

    gc.freeze()  # or each step ends with a search for garbage in all that was imported
    tables, verdicts, results = [], [], {}
    for number, (name, recipe) in enumerate(demo_recipes().items(), start=1):
        directory = output / name
        console.message(f"\n{number} of 2: the {name}")
        report = run(recipe, directory, f"compress demo --output {output}", console)
        measured, _, verdict = short_table(report).rpartition("\n\n")
        tables.append(f"The {name} ({directory / 'report.html'}):\n\n{measured}")
        verdicts.append(f"The {name}, {CASES[name]}:\n{verdict}")
        results[name] = {"output": str(directory), **summary(report)}
    console.message("")
    console.result("\n\n".join([*tables, *verdicts]), results)
    return 0


def demo_recipes() -> dict[str, Recipe]:
    """Kind of model -> what the demo runs, as the options of `compress run`."""
    from compressor.request import example

    models = {
        "classifier": (*example.help_desk(), CLASSIFIER_MACS),
        "translator": (example.model(), example.calibration(), example.test(), TRANSLATOR_MACS),
    }
    return {
        name: make_recipe(
            model=str(model),
            calibration=str(calibration),
            test=str(test),
            macs=macs,
            precision=["fp32,int8"],
            batch_size=[1, 16],
            bench_seconds=1.0,
            threads=1,
        )
        for name, (model, calibration, test, macs) in models.items()
    }
