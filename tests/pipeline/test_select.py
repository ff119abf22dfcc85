"""Steps with repair between them, learned masks and distillation, within whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import compressor
from compressor.errors import InputError, UsageError
from compressor.importance import Scoring, score_heads
from compressor.learned_masks import LEARNED
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import gated, mask_gates
from compressor.pipeline import select as choosing
from compressor.pipeline.recipe import Recipe
from compressor.pipeline.run import run
from compressor.pipeline.validate import refuse_unused
from compressor.tasks import get_task, read_rows
from tests.helpers import toy
from tests.helpers.runs import Progress, hashes

pytestmark = pytest.mark.usefixtures("shared_exports")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("dense")
    return {"bert": toy.classifier(root / "bert"), "marian": toy.translator(root / "marian")}


def recipe(checkpoints, tmp_path: Path, name: str = "bert", **options) -> Recipe:
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
    return Recipe(**values | options)


def heads_of(out: Path) -> dict:
    return json.loads((out / "heads.json").read_text(encoding="utf-8"))


def test_scores_between_steps_are_those_of_the_repaired_model(checkpoints, tmp_path):
    """The last heads go by the scores of the model as it was repaired after the first step, not
    of the dense one: scored here once more, on the weights that the run kept."""
    options = recipe(
        checkpoints, tmp_path, steps=2, recover="reconstruct", method="fisher", normalize="none"
    )
    run(options, tmp_path / "out")
    found = heads_of(tmp_path / "out")
    assert found["selection"] == "2 steps, repaired after each"
    checkpoint = open_checkpoint(str(checkpoints["bert"]))
    full = Mask.full(checkpoint.layers)
    first = json.loads((tmp_path / "out/.compress/scores.json").read_text(encoding="utf-8"))
    order = Scores(first["scores"], "fisher", "", {}).ascending()
    half = full.without(order[:3])  # 3 of 12 heads go in the first step, 3 in the second
    checkpoint.model.load_state_dict(
        load_file(tmp_path / "out/.compress/weights-keep-0.5.safetensors")
    )
    task = get_task("classification")
    labels = [f"LABEL_{i}" for i in range(5)]
    rows = read_rows("classification", options.calibration, labels=labels, minimum=1)
    batches = task.batches(task.encode(rows, checkpoint.tokenizer, 512), checkpoint.model)
    again = score_heads(
        "fisher",
        Scoring(checkpoint.model, checkpoint.layers, half, batches, task),
        normalize="none",
    )
    for name, scores in found["scores"].items():
        for head in half.kept(name):
            assert scores[head] == pytest.approx(again.values[name][head], rel=1e-3)
    dense = first["scores"]
    assert any(found["scores"][n][h] != dense[n][h] for n in dense for h in half.kept(n))


@pytest.mark.parametrize(
    ("method", "name", "keep", "counts"),
    [
        ("hard-concrete", "bert", "0.5", {None: 6}),
        (
            "subset",
            "marian",
            "cross=5,encoder_self=3",
            {"cross": 5, "encoder_self": 3, "decoder_self": 12},
        ),
    ],
)
def test_a_learned_mask_has_exactly_the_heads_asked_for(
    checkpoints, tmp_path, method, name, keep, counts
):
    report = run(recipe(checkpoints, tmp_path, name, method=method, keep=[keep]), tmp_path / "out")
    found = heads_of(tmp_path / "out")
    mask = Mask.from_json(found["kept"], found["heads"])
    assert {kind: mask.count(kind) for kind in counts} == counts
    assert found["method"] == method
    assert "epoch" in report.variants[0].selection
    assert report.variants[0].selection in (tmp_path / "out/report.md").read_text(encoding="utf-8")


def test_trained_weights_are_the_ones_that_are_cut(checkpoints, tmp_path):
    """The artifact answers as the trained model does with the removed heads gated."""
    options = recipe(
        checkpoints, tmp_path, method="subset", train_weights="all", learning_rate=1e-3
    )
    out = tmp_path / "out"
    run(options, out)
    found = heads_of(out)
    mask = Mask.from_json(found["kept"], found["heads"])
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


@pytest.mark.parametrize("stop_at", ["epoch 2", "removing"])
def test_a_stopped_training_goes_on_and_ends_the_same(checkpoints, tmp_path, stop_at):
    options = recipe(checkpoints, tmp_path, method="subset", train_weights="all", recover="distill")
    run(options, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(options, tmp_path / "stopped", progress=Progress(stop_at))
    run(options, tmp_path / "stopped")
    assert hashes(tmp_path / "stopped") == hashes(tmp_path / "whole")


def test_a_penalty_decides_how_many_heads_are_left(checkpoints, tmp_path):
    """A penalty per head far above the loss closes every gate it may; floors keep one a layer."""
    options = recipe(
        checkpoints, tmp_path, method="hard-concrete", keep=[], penalty=50.0, gate_epochs=100
    )
    progress = Progress()
    report = run(options, tmp_path / "out", progress=progress)
    assert report.variants[0].budget == "penalty 50"
    assert "learning with hard-concrete which heads to keep (penalty 50) …" in progress.messages
    assert f"  {report.variants[0].selection}" in progress.messages  # told at once, too
    assert sum(map(len, report.variants[0].kept.values())) == 3


def test_distillation_is_told_in_the_report(checkpoints, tmp_path):
    options = recipe(checkpoints, tmp_path, "marian", recover="reconstruct+distill")
    report = run(options, tmp_path / "out")
    assert "; then distill: " in report.variants[0].recovery
    assert not list((tmp_path / "out/.compress").glob("distill-*"))  # only to go on from
    assert heads_of(tmp_path / "out")["recovery"] == report.variants[0].recovery


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "subset", "keep": []}, "needs to know how many heads to keep"),
        (
            {"method": "subset", "train_weights": "all", "recover": "reconstruct"},
            "--recover reconstruct would re-solve what --train-weights all trains",
        ),
        ({"method": "subset", "penalty": 0.1}, "--penalty 0.1 is for --method hard-concrete"),
        ({"method": "hard-concrete", "penalty": 0.1}, "drop it, or drop the budget"),
        ({"method": "hard-concrete", "estimator": "straight-through"}, "is for --method subset"),
        ({"method": "subset", "steps": 2}, "--steps 2 does not go with --method subset"),
        ({"method": "taylor", "penalty": 0.1}, "learned masks; use --method hard-concrete, or"),
        ({"method": "taylor", "estimator": "straight-through"}, "masks; use --method subset, or"),
        ({"method": "taylor", "train_weights": "all"}, "--train-weights all is for learned masks"),
        ({"method": "taylor", "gate_epochs": 3}, "--gate-epochs 3 is for learned masks"),
        ({"ablate": "metric"}, "--ablate metric is for --method ablation"),
        ({"method": "subset", "normalize": "none"}, "--normalize none is for --method taylor or"),
        ({"normalize": "none"}, "--normalize none is for .*, not for second-order"),
        ({"test_rows": 9}, "--test-rows 9 is for --test FILE; give it, or leave it out"),
        ({"per": "example"}, "--per example is for --method taylor or relevance"),
        ({"distill_epochs": 3}, "add --recover distill"),
        ({"learning_rate": 0.1}, "--learning-rate 0.1 is for weights .* add --recover distill"),
        ({"method": "subset", "learning_rate": 0.1}, "add --train-weights encoder"),
        ({"patience": 3}, "--patience 3 is for training; add --recover distill"),
        ({"num_beams": 2}, "--num-beams 2 is for translators"),
        ({"target_length": 9}, "--target-length 9 is for translators"),
        ({"method": "subset", "calibration": None}, "--method subset needs --calibration FILE"),
        ({"recover": "reconstruct+none"}, "name each method once, and none only alone"),
    ],
)
def test_what_does_not_go_together_is_refused(checkpoints, tmp_path, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        run(recipe(checkpoints, tmp_path, **options), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "usual"), [("bert", 5e-5), ("marian", 1e-4)])
def test_the_learning_rate_follows_from_the_task(checkpoints, tmp_path, monkeypatch, name, usual):
    rates = []
    monkeypatch.setattr(
        choosing, "recover", lambda how, job: rates.append(how["distill"]["learning_rate"])
    )
    checkpoint = open_checkpoint(str(checkpoints[name]))
    for rate in (None, 0.01):
        wanted = recipe(checkpoints, tmp_path, name, recover="distill", learning_rate=rate)
        choosing.repair_checkpoint(wanted, checkpoint, [], checkpoint.model, "cpu", Progress())
    assert rates == [usual, 0.01]


@pytest.mark.parametrize("options", [{"recover": "reconstruct+distill"}, {"method": "subset"}])
def test_too_few_rows_to_train_on_are_told_first(checkpoints, tmp_path, options):
    few = recipe(checkpoints, tmp_path, calibration_rows=10, **options)
    with pytest.raises(InputError, match="10 calibration rows are too few .* at least 16"):
        run(few, tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
def test_options_that_do_something_are_taken(checkpoints, tmp_path, options):
    wanted = recipe(checkpoints, tmp_path, **options)
    refuse_unused(wanted, "classification")
    refuse_unused(wanted.model_copy(update={"num_beams": 2, "target_length": 9}), "translation")
