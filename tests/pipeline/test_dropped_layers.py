"""Runs that drop whole layers first, from the option to the artifact."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from compressor.importance import METHODS
from compressor.model.checkpoint import open_checkpoint
from compressor.model.depth import without_skipped
from compressor.model.saving import save_checkpoint
from compressor.model.sublayers import Mask, renumbered
from compressor.model.surgery import prune
from compressor.pipeline.inputs import ModelAndRows, encode, read
from compressor.pipeline.run import run
from compressor.pipeline.score import score
from compressor.progress import SILENT
from compressor.request.sections import Data
from compressor.runtime import Classifier
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.command_line import compress
from tests.helpers.runs import Progress, check_manifest, recipe_for
from tests.helpers.tiny import facts


def shell(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = compress(*arguments, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    return toy.classifier(tmp_path_factory.mktemp("bert") / "dense")


@pytest.mark.parametrize("name", METHODS)
def test_scores_without_a_layer_are_those_of_a_model_that_never_had_it(name, classifier, tmp_path):
    dense = open_checkpoint(str(classifier))
    start = Mask.full(dense.layers).without_layers(["encoder.1"])
    small = without_skipped(dense, prune(dense.model, dense.layers, start), start)
    record = facts(dense.layers, start) | {"dropped_layers": ["encoder.1"]}
    save_checkpoint(dense, small.model, record, tmp_path / "shallow")
    rows = Data(calibration=str(toy.labels_file(tmp_path / "rows.tsv")))

    def scores(directory: Path, mask: Mask | None) -> dict[str, tuple[float, ...]]:
        checkpoint = open_checkpoint(str(directory))
        task, method = TASKS[checkpoint.task], METHODS[name]()
        sublayers = [x for x in checkpoint.layers if method.scores_neurons or x.is_attention]
        found = read(rows, checkpoint, task).calibration
        assert found is not None
        given = ModelAndRows(checkpoint, encode(found, checkpoint, task), found)
        how = {"method": method, "sublayers": sublayers, "seed": 0, "device": "cpu"}
        full = Mask.full(checkpoint.layers)
        return dict(score(mask or full, source=given, progress=SILENT, **how).values)

    skipping, without = scores(classifier, start), scores(tmp_path / "shallow", None)
    assert set(renumbered(skipping, start.dropped)) == set(without)
    for sublayer, values in renumbered(skipping, start.dropped).items():
        assert values == pytest.approx(without[sublayer], rel=1e-4, abs=1e-9)


@pytest.mark.slow
def test_a_translator_loses_layers_through_the_shell(shallow, tmp_path):
    """With units and a repair; the artifact verifies, runs and is timed."""
    translator, rows, out = shallow / "marian", shallow / "rows.tsv", shallow / "out"
    check_manifest(out)
    record = json.loads((out / "units.json").read_text(encoding="utf-8"))
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    dense = json.loads((translator / "config.json").read_text(encoding="utf-8"))
    assert sorted(x.partition(".")[0] for x in record["dropped_layers"]) == ["decoder", "encoder"]
    assert config["decoder_layers"] == dense["decoder_layers"] - 1
    assert config["encoder_layers"] == dense["encoder_layers"] - 1
    kept = {name for name, units in record["kept"].items() if units}
    assert kept  # others still have units
    graphs = json.loads((out / "onnx" / "graphs.json").read_text(encoding="utf-8"))
    assert len(graphs["decoder_self_heads"]) == config["decoder_layers"]

    (variant,) = report_of(out)["variants"]
    assert variant["dropped_layers"] == sorted(
        record["dropped_layers"], key=lambda layer: not layer.startswith("encoder")
    )
    assert variant["macs_share"] <= 0.5
    page = (out / "report.html").read_text(encoding="utf-8")
    assert f"skips {' and '.join(variant['dropped_layers'])}" in page

    assert compress("verify", out).returncode == 0
    shutil.copytree(out, tmp_path / "copy")
    timing = ("--test", rows, "--batch-size", "2", "--bench-seconds", "0.05")
    timed = shell("bench", out, tmp_path / "copy", *timing)
    assert "speed-up" in timed.stdout
    (tmp_path / "text").write_text("w3 w4\n", encoding="utf-8")
    assert shell("translate", out, tmp_path / "text").stdout.count("\n") == 1


def report_of(out: Path) -> dict:
    return json.loads((out / "report.json").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "budget", [{"max_drop": "100"}, pytest.param({"speedup": "1.01"}, marks=pytest.mark.attack)]
)
def test_measured_budgets_start_from_the_layers_that_are_left(budget, classifier, tmp_path):
    options = {"keep": None, "drop_layers": "encoder=2", "multiple": "8", "recover": "none"}
    options |= {"batch_size": "16", "prune": "heads", "bench_seconds": 0.02}
    progress = Progress()
    report = run(
        recipe_for(classifier, tmp_path, **options | budget), tmp_path / "out", "", progress
    )
    (variant,) = report.variants
    assert len(variant.dropped_layers) == 2
    gone = [f"encoder_self.{layer.partition('.')[2]}" for layer in variant.dropped_layers]
    assert [variant.counts[name] for name in gone] == [0, 0]
    assert sum("without encoder." in message for message in progress.messages) == 2
    assert len(Classifier(tmp_path / "out", device="cpu").classify(["w3 w4"])) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("no_graphs")
def test_where_layers_alone_are_enough_no_unit_goes(classifier, tmp_path):
    """Also in a run that was stopped once the units were chosen."""
    options = {"keep": None, "macs": "0.9", "drop_layers": "encoder=1", "bench": False}
    options["test"] = None
    recipe = recipe_for(classifier, tmp_path, **options)
    with pytest.raises(KeyboardInterrupt):
        run(recipe, tmp_path / "out", "", Progress("removing units"))
    report = run(recipe, tmp_path / "out", "", SILENT)
    assert len(report.variants[0].dropped_layers) == 1
    counts = report.variants[0].counts
    assert sorted({counts[name] for name in report.dense.heads}) == [0, 4]
    assert not (tmp_path / "out" / "modeling_pruned.py").exists()
