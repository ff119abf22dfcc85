"""Steps with repair between them, learned masks and distillation, within whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import compressor
from compressor.importance import METHODS, ScoringJob, score_units
from compressor.learned_masks import LEARNED
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask, belongs
from compressor.model.surgery import gated, mask_gates
from compressor.pipeline.run import run, score_checkpoint
from compressor.request.recipe import Recipe, ScoreRequest
from compressor.request.resolve import resolve
from compressor.request.validate import check_model
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.recipes import recipe, request
from tests.helpers.runs import Progress, hashes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_graphs")]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("dense")
    marian = toy.first_layers(toy.translator(root / "whole"), root / "marian")
    return {"bert": toy.classifier(root / "bert"), "marian": marian}


def wanted(checkpoints, tmp_path: Path, name: str = "bert", **options) -> Recipe:
    """A short run of a toy checkpoint: no repair, no benchmark."""
    write = toy.pairs_file if name == "marian" else toy.labels_file
    rows = tmp_path / f"{name}.tsv"
    values = {
        "model": str(checkpoints[name]),
        "calibration": str(rows if rows.exists() else write(rows)),
        "keep": ["0.5"],
        "bench": False,
        "device": "cpu",
        "recover": "none",
    }
    if options.get("method") in LEARNED:
        values["gate_epochs"] = 3
    if "distill" in options.get("recover", ""):
        values["distill_epochs"] = 2
    return recipe(**values | options)


def heads_of(out: Path) -> dict:
    return json.loads((out / "units.json").read_text(encoding="utf-8"))


def test_scores_between_steps_are_those_of_the_repaired_model(checkpoints, tmp_path):
    """The last heads go by the scores of the model as it was repaired after the first step, not
    of the dense one: scored here once more, on the weights that the run kept."""
    options = wanted(
        checkpoints, tmp_path, steps=2, recover="reconstruct", method="fisher", normalize="none"
    )
    run(options, tmp_path / "out")
    found = heads_of(tmp_path / "out")
    assert found["selection"] == "2 steps, repaired after each"
    checkpoint = open_checkpoint(str(checkpoints["bert"]))
    heads = [layer for layer in checkpoint.layers if layer.is_attention]
    full = Mask.full(heads)
    first = score_checkpoint(
        request(
            ScoreRequest, model=str(checkpoints["bert"]), calibration=options.data.calibration,
            method="fisher", normalize="none",
        )
    )  # fmt: skip
    order = first.ascending()
    half = full.without(order[:3])  # 3 of 12 heads go in the first step, 3 in the second
    weights = load_file(tmp_path / "out/.compress/weights-keep-0.5.safetensors")
    checkpoint.model.load_state_dict(weights)
    task = TASKS["classification"]
    labels = [f"LABEL_{i}" for i in range(5)]
    rows = TASKS["classification"].read_rows(options.data.calibration, labels=labels, minimum=1)
    batches = task.batches(task.encode(rows, checkpoint.tokenizer, 512), checkpoint.model)
    job = ScoringJob(checkpoint.model, heads, half, batches, task)
    again = score_units(METHODS["fisher"](normalize="none"), job)
    for name, scores in found["scores"].items():
        for head in half.kept(name):
            assert scores[head] == pytest.approx(again.values[name][head], rel=1e-3)
    dense = first.values
    assert any(found["scores"][n][h] != dense[n][h] for n in dense for h in half.kept(n))


@pytest.mark.parametrize(
    ("method", "name", "keep", "counts"),
    [
        ("hard-concrete", "bert", "heads=0.6,neurons=48", {"heads": 7, "neurons": 48}),
        ("subset", "marian", "cross=2,encoder_self=3",
         {"cross": 2, "encoder_self": 3, "decoder_self": 4}),
    ],
)  # fmt: skip
def test_a_learned_mask_has_exactly_the_units_asked_for(
    checkpoints, tmp_path, method, name, keep, counts
):
    options = wanted(checkpoints, tmp_path, name, method=method, keep=[keep], multiple="8")
    report = run(options, tmp_path / "out")
    found = heads_of(tmp_path / "out")
    mask = Mask.from_json(found["kept"], found["units"])
    assert {kind: mask.count(kind) for kind in counts} == counts
    assert found["method"] == method
    assert "epoch" in report.variants[0].selection
    assert report.variants[0].selection in (tmp_path / "out/report.md").read_text(encoding="utf-8")


def test_trained_weights_are_the_ones_that_are_cut(checkpoints, tmp_path):
    """The artifact answers as the trained model does with the removed heads gated.

    A training that was stopped goes on and ends with the same.
    """
    options = wanted(
        checkpoints, tmp_path, method="subset", train_weights="all", learning_rate=1e-3
    )
    out = tmp_path / "out"
    run(options, out)
    found = heads_of(out)
    mask = Mask.from_json(found["kept"], found["units"])
    checkpoint = open_checkpoint(str(checkpoints["bert"]))
    before = checkpoint.model.state_dict()["bert.embeddings.word_embeddings.weight"].clone()
    checkpoint.model.load_state_dict(load_file(out / ".compress/weights-keep-0.5.safetensors"))
    after = checkpoint.model.state_dict()["bert.embeddings.word_embeddings.weight"]
    assert not torch.equal(before, after)
    batch = checkpoint.tokenizer(["w3 w9 w4", "w7"], return_tensors="pt", padding=True)
    with torch.no_grad(), gated(checkpoint.model, checkpoint.layers, mask_gates(mask)):
        expected = checkpoint.model(**batch).logits
    with torch.no_grad():
        actual = compressor.load(out)(**batch).logits
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    for stop_at in ("epoch 2", "removing"):
        with pytest.raises(KeyboardInterrupt):
            run(options, tmp_path / "stopped", progress=Progress(stop_at))
    run(options, tmp_path / "stopped")
    assert hashes(tmp_path / "stopped") == hashes(out)


def test_a_penalty_decides_how_many_heads_are_left(checkpoints, tmp_path):
    """A penalty per head far above the loss closes every gate it may; floors keep one a layer."""
    options = wanted(
        checkpoints, tmp_path, method="hard-concrete", keep=[], penalty=500.0, gate_epochs=40
    )
    progress = Progress()
    report = run(options, tmp_path / "out", progress=progress)
    assert report.variants[0].budget == "penalty 500"
    assert "learning with hard-concrete which units to keep (penalty 500) …" in progress.messages
    assert f"  {report.variants[0].selection}" in progress.messages  # told at once, too
    kept = report.variants[0].kept
    assert sum(len(units) for name, units in kept.items() if belongs(name, "heads")) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"method": "relevance", "per": "example"},
        {"method": "ablation", "ablate": "metric"},
        {"method": "subset", "gate_epochs": 3, "patience": 3},
        {"method": "subset", "train_weights": "all", "learning_rate": 0.1},
        {"recover": "distill", "distill_epochs": 3, "learning_rate": 0.1, "patience": 3},
    ],
)
@pytest.mark.parametrize("name", ["bert", "marian"])
def test_options_that_do_something_are_taken(checkpoints, tmp_path, name, options):
    if name == "marian":
        options = options | {"num_beams": 2, "target_length": 9, "bench": True}
    accepted = wanted(checkpoints, tmp_path, name, **options)
    checkpoint = open_checkpoint(str(checkpoints[name]))
    check_model(resolve(accepted), checkpoint, TASKS[checkpoint.task])
