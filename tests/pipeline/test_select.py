"""Steps with repair between them, learned masks and distillation, within whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import compressor
from compressor.errors import InputError, UsageError
from compressor.importance import METHODS, ScoringJob, score_units
from compressor.learned_masks import LEARNED
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask, belongs
from compressor.model.surgery import gated, mask_gates, prune
from compressor.pipeline.inputs import encode, read
from compressor.pipeline.repair import Repair
from compressor.pipeline.run import run
from compressor.pipeline.single_steps import score_checkpoint
from compressor.progress import SILENT
from compressor.request.recipe import Recipe, ScoreRequest
from compressor.request.resolve import resolve
from compressor.request.validate import check_model
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.errors import raises
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
    """The artifact answers as the trained model does with the removed heads gated."""
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


def test_a_stopped_training_goes_on_and_ends_the_same(checkpoints, tmp_path):
    options = wanted(checkpoints, tmp_path, method="subset", train_weights="all", recover="distill")
    run(options, tmp_path / "whole")
    for stop_at in ("epoch 2", "removing"):
        with pytest.raises(KeyboardInterrupt):
            run(options, tmp_path / "stopped", progress=Progress(stop_at))
    run(options, tmp_path / "stopped")
    assert hashes(tmp_path / "stopped") == hashes(tmp_path / "whole")


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


def test_distillation_is_told_in_the_report(checkpoints, tmp_path):
    options = wanted(checkpoints, tmp_path, recover="reconstruct+distill")
    report = run(options, tmp_path / "out")
    assert "; then distill: " in report.variants[0].recovery
    assert not list((tmp_path / "out/.compress").glob("repair-*"))  # only to go on from
    assert heads_of(tmp_path / "out")["recovery"] == report.variants[0].recovery


@pytest.mark.parametrize(
    ("options", "problem", "detail"),
    [
        ({"method": "subset", "keep": []}, "option-missing", "--keep"),
        (
            {"method": "subset", "train_weights": "all", "recover": "reconstruct"},
            "options-exclude-each-other", "--train-weights all",
        ),
        ({"method": "subset", "keep": [], "penalty": 0.1}, "option-without-use", "hard-concrete"),
        ({"method": "hard-concrete", "penalty": 0.1}, "options-exclude-each-other", "--penalty"),
        (
            {"method": "hard-concrete", "estimator": "straight-through"},
            "option-without-use", "--method subset",
        ),
        ({"method": "subset", "steps": 2}, "options-exclude-each-other", "--steps 2"),
        (
            {"method": "taylor", "keep": [], "penalty": 0.1},
            "option-without-use", "--method hard-concrete",
        ),
        (
            {"method": "taylor", "estimator": "straight-through"},
            "option-without-use", "--method subset",
        ),
        (
            {"method": "taylor", "train_weights": "all"},
            "option-without-use", "--train-weights all is for --method hard-concrete or subset",
        ),
        ({"method": "taylor", "gate_epochs": 3}, "option-without-use", "--gate-epochs 3"),
        ({"ablate": "metric"}, "option-without-use", "--method ablation"),
        ({"method": "subset", "normalize": "none"}, "option-without-use", "taylor or"),
        ({"normalize": "none"}, "option-without-use", "taylor or"),
        ({"test_rows": 9}, "option-without-use", "--test"),
        ({"per": "example"}, "option-without-use", "--method taylor or relevance"),
        ({"distill_epochs": 3}, "option-without-use", "--recover distill"),
        ({"learning_rate": 0.1}, "option-without-use", "--recover distill"),
        ({"method": "subset", "learning_rate": 0.1}, "option-without-use", "--train-weights"),
        ({"patience": 3}, "option-without-use", "--recover distill"),
        ({"num_beams": 2}, "option-without-use", "for translation"),
        (
            {"target_length": 9, "bench": True, "batch_size": "2"},
            "option-without-use", "for translation",
        ),
        ({"method": "subset", "calibration": None}, "calibration-missing", "--method subset"),
        ({"recover": "reconstruct+none"}, "name-twice", "none"),
        (
            {"method": "confidence", "keep": ["neurons=0.5"]},
            "method-for-heads-alone", "--prune heads",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(checkpoints, tmp_path, options, problem, detail):
    with raises(UsageError, problem) as caught:
        run(wanted(checkpoints, tmp_path, **options), tmp_path / "out")
    assert detail in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "usual"), [("bert", 5e-5), ("marian", 1e-4)])
def test_the_learning_rate_follows_from_the_task(checkpoints, tmp_path, name, usual):
    """Without one, distillation ends where it ends with the usual one of the task."""
    checkpoint = open_checkpoint(str(checkpoints[name]))
    task = TASKS[checkpoint.task]
    mask = Mask.full(checkpoint.layers).without([(checkpoint.layers[0].name, 0)])
    pruned = prune(checkpoint.model, checkpoint.layers, mask)

    def distilled(rate: float | None) -> dict[str, torch.Tensor]:
        options = wanted(
            checkpoints, tmp_path, name, recover="distill", distill_epochs=1, learning_rate=rate
        )
        rows = read(options.data, checkpoint, task).calibration
        examples = encode(rows, checkpoint, task)
        repair = Repair(options.recovery, checkpoint, examples, 0, "cpu", SILENT)
        return repair.run(pruned, mask).model.state_dict()

    expected, other, found = distilled(usual), distilled(2 * usual), distilled(None)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert any(not torch.equal(found[key], other[key]) for key in other)


@pytest.mark.parametrize("options", [{"recover": "reconstruct+distill"}, {"method": "subset"}])
def test_too_few_rows_to_train_on_are_told_first(checkpoints, tmp_path, options):
    few = wanted(checkpoints, tmp_path, calibration_rows=10, **options)
    with raises(InputError, "too-few-rows-to-train") as caught:
        run(few, tmp_path / "out")
    assert "10" in str(caught.value)
    assert "16" in str(caught.value)
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
@pytest.mark.parametrize("name", ["bert", "marian"])
def test_options_that_do_something_are_taken(checkpoints, tmp_path, name, options):
    if name == "marian":
        options = options | {"num_beams": 2, "target_length": 9, "bench": True}
    accepted = wanted(checkpoints, tmp_path, name, **options)
    checkpoint = open_checkpoint(str(checkpoints[name]))
    check_model(resolve(accepted), checkpoint, TASKS[checkpoint.task])
