"""Shared by tests of budgets that are measured: a run up to its search."""

from __future__ import annotations

import subprocess
from pathlib import Path

from compressor.model.sublayers import Mask
from compressor.pipeline.artifacts import make_trials, prepare
from compressor.pipeline.build import Builder
from compressor.pipeline.choose import RunTrials
from compressor.pipeline.inputs import TargetTokens, load
from compressor.pipeline.run import open_run
from compressor.pipeline.unit_costs import unit_costs
from compressor.progress import SILENT
from compressor.request.recipe import Recipe
from compressor.request.resolve import resolve
from compressor.results import Variant
from compressor.tasks import TASKS
from tests.helpers.command_line import compress


def shell(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`compress run` as a user types it."""
    return compress("run", *arguments, "--device", "cpu")


def before_search(recipe: Recipe, out: Path, progress=SILENT) -> RunTrials:
    """A run up to the search for its only budget; the dense model is only a name."""
    plan, checkpoint = resolve(recipe), load(recipe.model)
    inputs = prepare(plan, checkpoint, out, progress)
    workspace = open_run(plan, inputs, out, progress)
    full = Mask.full(checkpoint.layers)
    dense = Variant(
        name="dense", directory="nowhere", budget="", kept=full.to_json(), heads=full.counts(),
        neurons={}, kept_neurons={}, macs_share=1.0, parameters=0, checkpoint_bytes=0,
        onnx_bytes=0, precision="fp32",
    )  # fmt: skip
    task = TASKS[checkpoint.task]
    costs = unit_costs(checkpoint, task, inputs.encoded.fitted.examples)
    tokens = TargetTokens(None, None)
    builder = Builder(workspace, inputs.repair, inputs.encoded.probe, tokens, costs)
    (trials,) = make_trials(plan, inputs, workspace, dense, builder)
    trials.scores()
    return trials


def state(out: Path) -> set[str]:
    """Names of finished stages; nothing temporary may be left."""
    entries = list((out / ".compress").iterdir())
    assert not [path for path in entries if path.name.startswith(("trial-", "candidate-")) and
                path.is_dir()]  # fmt: skip
    return {path.stem for path in entries}
