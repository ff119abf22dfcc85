"""Shared by tests of budgets that are measured: short models, and a run up to its search."""

from __future__ import annotations

import subprocess
from pathlib import Path

from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.pipeline.build import Builder
from compressor.pipeline.choose import RunTrials
from compressor.pipeline.inputs import TargetTokens, load
from compressor.pipeline.run import make_trials, open_run, prepare
from compressor.pipeline.unit_costs import unit_costs
from compressor.progress import SILENT
from compressor.request.recipe import Recipe
from compressor.request.resolve import resolve
from compressor.results import Variant
from compressor.tasks import TASKS
from tests.helpers.command_line import compress


def first_layers(model: Path, directory: Path) -> Path:
    """The first layer of each stack alone: graphs are exported in a third of the time."""
    loaded = open_checkpoint(str(model))
    if hasattr(loaded.model, "bert"):
        loaded.model.bert.encoder.layer = loaded.model.bert.encoder.layer[:1]
        loaded.model.config.num_hidden_layers = 1
    else:
        for part in (loaded.model.model.encoder, loaded.model.model.decoder):
            part.layers = part.layers[:1]
        one = {"encoder_layers": 1, "decoder_layers": 1, "num_hidden_layers": 1}
        loaded.model.config.update(one)
    loaded.model.save_pretrained(directory)
    loaded.tokenizer.save_pretrained(directory)
    return directory


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
    costs = unit_costs(checkpoint, task, inputs.fitted.examples)
    tokens = TargetTokens(None, None)
    builder = Builder(workspace, inputs.repair, inputs.probe, tokens, costs)
    (trials,) = make_trials(plan, inputs, workspace, dense, builder)
    trials.scores()
    return trials


def state(out: Path) -> set[str]:
    """Names of finished stages; nothing temporary may be left."""
    entries = list((out / ".compress").iterdir())
    assert not [path for path in entries if path.name.startswith(("trial-", "candidate-")) and
                path.is_dir()]  # fmt: skip
    return {path.stem for path in entries}
