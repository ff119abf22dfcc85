"""Distillation that goes on from an artifact of an earlier run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.pruning_record import read_pruning_record
from compressor.model.surgery import prune
from compressor.pipeline.inputs import ModelAndRows, encode, read
from compressor.pipeline.recover import recover
from compressor.pipeline.run import run
from compressor.progress import SILENT
from compressor.recovery.distillation import with_earlier_weights
from compressor.request.recipe import Recipe
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.command_line import compress
from tests.helpers.errors import raises
from tests.helpers.runs import recipe_for

TOO_SMALL = 1e-12  # a learning rate from which nothing can be gained


pytestmark = pytest.mark.slow


@pytest.fixture
def translator(shallow) -> Path:
    return shallow / "marian"


@pytest.fixture
def earlier(shallow) -> Path:
    """The artifact of a run without one layer of each stack."""
    return shallow / "out"


def recipe_of(model: Path, tmp_path: Path, **options: object) -> Recipe:
    cut = {"macs": "0.5", "keep": None, "drop_layers": "decoder=1,encoder=1", "multiple": "8"}
    learn = {"recover": "distill", "distill_epochs": 3, "bench": False}
    return recipe_for(model, tmp_path, **cut | learn | options)


def test_it_starts_from_the_weights_of_the_artifact(translator, earlier, tmp_path):
    """Where nothing is gained, the new artifact has them, to the bit."""
    given = {"distill_start": str(earlier), "learning_rate": TOO_SMALL}
    report = run(recipe_of(translator, tmp_path, **given), tmp_path / "out")
    before, after = (load_file(x / "model.safetensors") for x in (earlier, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    (variant,) = report.variants
    assert variant.recovery.endswith(f"started from the weights of {earlier.name}")
    dense = load_file(translator / "model.safetensors")
    assert any(not torch.equal(dense[name], after[name]) for name in after if name in dense)


def test_more_training_comes_closer_to_the_dense_model(translator, earlier, tmp_path):
    """Trained as within a run, whose exports would take the most time."""
    given = recipe_of(translator, tmp_path, distill_start=str(earlier), learning_rate=1e-4)
    checkpoint, mask = open_checkpoint(str(translator)), read_pruning_record(earlier).mask
    task = TASKS[checkpoint.task]
    examples = encode(read(given.data, checkpoint, task).calibration, checkpoint, task)
    pruned = prune(checkpoint.model, checkpoint.layers, mask)
    text = recover(
        given.recovery, ModelAndRows(checkpoint, examples), pruned, mask, seed=given.seed,
        device="cpu", progress=SILENT,
    ).text  # fmt: skip
    before, after = text.split("held-out rows ")[1].split(" before, ")
    assert float(after.split(" after")[0]) < float(before)


def test_an_artifact_with_other_units_is_refused(translator, earlier):
    dense = open_checkpoint(str(translator))
    mask = read_pruning_record(earlier).mask
    layer = next(name for name in mask.keep if mask.kept(name))
    fewer = mask.without([(layer, mask.kept(layer)[0])])
    with raises(InputError, "start-other-units") as caught:
        with_earlier_weights(prune(dense.model, dense.layers, fewer), fewer, earlier)
    assert "heads" in str(caught.value)
    assert "--distill-start" in str(caught.value)


def test_an_artifact_of_another_model_is_refused(earlier, tmp_path):
    """With the same units, and another vocabulary."""
    other = open_checkpoint(str(toy.marian_with_pieces(tmp_path / "other", own_target=True)))
    mask = read_pruning_record(earlier).mask
    pruned = prune(other.model, other.layers, mask)
    with raises(InputError, "start-other-shapes"):
        with_earlier_weights(pruned, mask, earlier)


@pytest.mark.parametrize("what", ["missing", "dense"])
def test_what_is_no_artifact_is_refused_before_anything_is_computed(translator, tmp_path, what):
    start = {"missing": tmp_path / "nothing", "dense": translator}[what]
    rows = toy.pairs_file(tmp_path / "rows.tsv")
    done = compress(
        "run", "--model", translator, "--calibration", rows, "--macs", "0.5", "--output",
        tmp_path / "out", "--recover", "distill", "--distill-start", start, "--device", "cpu",
    )  # fmt: skip
    assert done.returncode == 4
    assert "units.json" in done.stderr
    assert not (tmp_path / "out").exists()
