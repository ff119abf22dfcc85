"""Runs that remove heads and neurons together, down to layers without either."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import compressor
from compressor.model.checkpoint import open_checkpoint
from compressor.pipeline.run import run
from compressor.progress import SILENT
from compressor.runtime import Translator
from compressor.tasks import TASKS
from compressor.throughput.multiply_adds import WorkSize, total_multiply_adds
from compressor.throughput.shapes import shape_of
from tests.helpers import toy
from tests.helpers.runs import recipe_for

pytestmark = pytest.mark.slow
SMALL = {"keep": None, "bench": False, "multiple": "8"}
UNTESTED = SMALL | {"test": None, "recover": "none"}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("dense")
    marian = toy.first_layers(toy.translator(root / "whole"), root / "marian")
    return {"bert": toy.classifier(root / "bert"), "marian": marian}


def record_of(directory: Path) -> dict:
    return json.loads((directory / "units.json").read_text(encoding="utf-8"))


@pytest.mark.usefixtures("no_graphs")
@pytest.mark.parametrize("name", ["bert", "marian"])
def test_a_share_of_the_multiply_adds_is_kept(name, checkpoints, tmp_path):
    """Counted anew, row by row, from what the artifact says it kept."""
    made = recipe_for(checkpoints[name], tmp_path, **SMALL | {"test": None}, macs="0.7")
    report = run(made, tmp_path / "out", "", SILENT)
    record = record_of(tmp_path / "out")
    counts = {sublayer: len(kept) for sublayer, kept in record["kept"].items()}
    assert all(n % 8 == 0 for sublayer, n in counts.items() if "ffn" in sublayer)
    checkpoint = open_checkpoint(str(checkpoints[name]))
    config, task = checkpoint.model.config.to_dict(), TASKS[checkpoint.task]
    macs = {"dense": 0.0, "pruned": 0.0}
    for line in (tmp_path / "calibration.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        texts = line.split("\t")
        source = len(checkpoint.tokenizer(texts[0])["input_ids"])
        target = len(texts[1].split()) + 1 if name == "marian" else 0
        for model, units in (("dense", record["units"]), ("pruned", counts)):
            size = WorkSize(1, source, target)
            macs[model] += total_multiply_adds(shape_of(task, config, units), size)
    assert 0.6 < macs["pruned"] / macs["dense"] <= 0.7
    assert report.variants[0].kept_neurons == {n: c for n, c in counts.items() if "ffn" in n}
    assert {check.name for check in report.variants[0].checks} >= {
        "pruned equals masked",
        "reloaded equals saved",
    }


def test_nothing_but_biases_can_be_left(checkpoints, tmp_path):
    """No head and no neuron anywhere: it still exports, reloads and answers."""
    options = SMALL | {"floor": "0", "recover": "none", "keep": ["heads=0,neurons=0"]}
    run(recipe_for(checkpoints["marian"], tmp_path, **options), tmp_path / "out", "", SILENT)
    model = compressor.load(tmp_path / "out")
    assert sum(p.numel() for p in model.parameters()) < 0.6 * sum(
        p.numel() for p in compressor.load(checkpoints["marian"]).parameters()
    )
    assert len(Translator(tmp_path / "out", device="cpu").translate(["w3 w4 w5", "w9"])) == 2


@pytest.mark.usefixtures("no_graphs")
def test_several_shares_make_several_artifacts(checkpoints, tmp_path):
    """Of neurons alone, in two steps."""
    options = SMALL | {"test": None, "macs": "0.9,0.7", "prune": "neurons", "steps": 2}
    made = recipe_for(checkpoints["bert"], tmp_path, **options)
    report = run(made, tmp_path / "out", "", SILENT)
    more, less = report.variants
    assert (more.name, less.name) == ("macs-0.9", "macs-0.7")
    for variant in (more, less):
        assert sum(map(len, variant.kept.values())) == sum(variant.heads.values())
        assert "2 steps" in variant.selection
    assert sum(less.kept_neurons.values()) < sum(more.kept_neurons.values())
    recipe = (tmp_path / "out" / "macs-0.7" / "recipe.yaml").read_text(encoding="utf-8")
    assert "0.7" in recipe
    assert "0.9" not in recipe
