"""Layers that are dropped before units: scores without them, and budgets that start from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.importance import METHODS
from compressor.model.checkpoint import open_checkpoint, save_checkpoint
from compressor.model.sublayers import Mask, renumbered
from compressor.model.surgery import prune, without_skipped
from compressor.pipeline.inputs import ModelAndRows, encode, read
from compressor.pipeline.run import run
from compressor.pipeline.score import score
from compressor.progress import SILENT
from compressor.request.sections import Data
from compressor.runtime import Classifier
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.runs import Progress, recipe_for
from tests.helpers.tiny import facts


@pytest.mark.parametrize("name", METHODS)
def test_scores_without_a_layer_are_those_of_a_model_that_never_had_it(name, checkpoints, tmp_path):
    dense = open_checkpoint(str(checkpoints["bert"]))
    start = Mask.full(dense.layers).without_layers(["encoder.1"])
    small = without_skipped(dense, prune(dense.model, dense.layers, start), start)
    record = facts(dense.layers, start) | {"dropped_layers": ["encoder.1"]}
    save_checkpoint(dense, small.model, record, tmp_path / "shallow")
    rows = Data(calibration=str(toy.labels_file(tmp_path / "rows.tsv")))

    def scores(directory: Path, mask: Mask | None) -> dict[str, tuple[float, ...]]:
        checkpoint = open_checkpoint(str(directory))
        task, method = TASKS[checkpoint.task], METHODS[name]()
        sublayers = [x for x in checkpoint.layers if method.scores_neurons or x.is_attention]
        calibration = read(rows, checkpoint, task).calibration
        given = ModelAndRows(checkpoint, encode(calibration, checkpoint, task), calibration)
        how = {"method": method, "sublayers": sublayers, "seed": 0, "device": "cpu"}
        full = Mask.full(checkpoint.layers)
        return dict(score(mask or full, source=given, progress=SILENT, **how).values)

    skipping, without = scores(checkpoints["bert"], start), scores(tmp_path / "shallow", None)
    assert set(renumbered(skipping, start.dropped)) == set(without)
    for sublayer, values in renumbered(skipping, start.dropped).items():
        assert values == pytest.approx(without[sublayer], rel=1e-4, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "budget", [{"max_drop": "100"}, pytest.param({"speedup": "1.01"}, marks=pytest.mark.attack)]
)
def test_measured_budgets_start_from_the_layers_that_are_left(budget, checkpoints, tmp_path):
    options = {"keep": None, "drop_layers": "encoder=2", "multiple": "8", "recover": "none"}
    options |= {"batch_size": "16", "prune": "heads", "bench_seconds": 0.02}
    progress, out = Progress(), tmp_path / "out"
    report = run(recipe_for(checkpoints["bert"], tmp_path, **options | budget), out, "", progress)
    (variant,) = report.variants
    assert len(variant.dropped_layers) == 2
    gone = [f"encoder_self.{layer.partition('.')[2]}" for layer in variant.dropped_layers]
    assert [variant.counts[name] for name in gone] == [0, 0]
    assert sum("without encoder." in message for message in progress.messages) == 2
    assert len(Classifier(out, device="cpu").classify(["w3 w4"])) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("no_graphs")
def test_where_layers_alone_are_enough_no_unit_goes(checkpoints, tmp_path):
    """Also in a run that was stopped once the units were chosen."""
    options = {"keep": None, "macs": "0.9", "drop_layers": "encoder=1", "bench": False}
    recipe = recipe_for(checkpoints["bert"], tmp_path, **options, test=None)
    with pytest.raises(KeyboardInterrupt):
        run(recipe, tmp_path / "out", "", Progress("removing units"))
    report = run(recipe, tmp_path / "out", "", SILENT)
    assert len(report.variants[0].dropped_layers) == 1
    counts = report.variants[0].counts
    assert sorted({counts[name] for name in report.dense.heads}) == [0, 4]
    assert not (tmp_path / "out" / "modeling_pruned.py").exists()
