"""What runs choose: shares of multiply-adds, steps with repair, learned masks, whole layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import compressor
from compressor.importance import METHODS, ScoringJob, score_units
from compressor.importance.scoring import score
from compressor.learned_masks import LEARNED
from compressor.model.checkpoint import open_checkpoint, save_checkpoint
from compressor.model.sublayers import Mask, renumbered
from compressor.model.surgery import gated, mask_gates, prune, without_skipped
from compressor.options.inputs import calibration_rows
from compressor.options.recipe import Recipe
from compressor.options.requests import ScoreRequest
from compressor.options.sections import Data
from compressor.pipeline.run import run
from compressor.pipeline.single import score_checkpoint
from compressor.steps.context import Context
from compressor.tasks import TASKS
from compressor.tasks.opened import ModelAndRows, encode
from compressor.throughput.multiply_adds import WorkSize, shape_of, total_multiply_adds
from tests.helpers import toy
from tests.helpers.runs import Progress, hashes, recipe_for, request
from tests.helpers.tiny import facts

pytestmark = pytest.mark.slow

without_graphs = pytest.mark.usefixtures("no_graphs")


def wanted(checkpoints, tmp_path: Path, name: str = "bert", **options) -> Recipe:
    """A short run of a toy checkpoint: no repair, no test rows, no benchmark."""
    values = {"bench": False, "test": None, "recover": "none"}
    if options.get("method") in LEARNED:
        values["gate_epochs"] = 3
    if "distill" in options.get("recover", ""):
        values["distill_epochs"] = 2
    return recipe_for(checkpoints[name], tmp_path, **values | options)


def record_of(out: Path) -> dict:
    return json.loads((out / "units.json").read_text(encoding="utf-8"))


@without_graphs
@pytest.mark.parametrize(
    ("name", "more"), [("bert", {"prune": "neurons", "steps": 2}), ("short-marian", {})]
)
def test_a_share_of_the_multiply_adds_is_kept(name, more, checkpoints, tmp_path):
    """Counted anew, row by row, from what the artifact says it kept."""
    options = {"macs": "0.7", "keep": None, "multiple": "8", "recover": "reconstruct", **more}
    made = wanted(checkpoints, tmp_path, name, **options)
    (variant,) = run(made, tmp_path / "out").variants
    record = record_of(tmp_path / "out")
    counts = {sublayer: len(kept) for sublayer, kept in record["kept"].items()}
    assert all(n % 8 == 0 for sublayer, n in counts.items() if "ffn" in sublayer)
    checkpoint = open_checkpoint(str(checkpoints[name]))
    config, task = checkpoint.model.config.to_dict(), TASKS[checkpoint.task]
    macs = {"dense": 0.0, "pruned": 0.0}
    for line in Path(made.data.calibration).read_text(encoding="utf-8").splitlines()[1:]:
        texts = line.split("\t")
        source = len(checkpoint.tokenizer(texts[0])["input_ids"])
        target = len(texts[1].split()) + 1 if task.name == "translation" else 0
        for model, units in (("dense", record["units"]), ("pruned", counts)):
            size = WorkSize(1, source, target)
            # A classifier's last layer computes the token alone that is read.
            shape = shape_of(task, config, units, one_token=task.name == "classification")
            macs[model] += total_multiply_adds(shape, size)
    assert 0.6 < macs["pruned"] / macs["dense"] <= 0.7
    assert variant.kept_neurons == {n: c for n, c in counts.items() if "ffn" in n}
    heads_stay = all(counts[n] == units for n, units in record["units"].items() if "self" in n)
    assert heads_stay == ("prune" in more)
    names = {check.name for check in variant.checks}
    assert names >= {"pruned equals masked", "reloaded equals saved"}


@without_graphs
def test_scores_between_steps_are_those_of_the_repaired_model(checkpoints, tmp_path):
    """The last heads go by the scores of the model as it was repaired after the first step, not
    of the dense one: scored here once more, on the weights that the run kept."""
    fisher = {"method": "fisher", "normalize": "none"}
    options = wanted(checkpoints, tmp_path, steps=2, recover="reconstruct", **fisher)
    report = run(options, tmp_path / "out")
    record = record_of(tmp_path / "out")
    assert record["selection"] == "2 steps, recovered after each"
    assert "re-solved" in report.variants[0].recovery
    assert report.scoring.values == record["scores"]
    checkpoint = open_checkpoint(str(checkpoints["bert"]))
    heads = [layer for layer in checkpoint.layers if layer.is_attention]
    given = {"model": str(checkpoints["bert"]), "calibration": options.data.calibration}
    first = score_checkpoint(request(ScoreRequest, **given, **fisher))
    assert report.scoring.cost["forward_passes"] == 2 * first.cost["forward_passes"]
    # 3 of 12 heads go in the first step, 3 in the second.
    half = Mask.full(heads).without(first.ascending()[:3])
    weights = load_file(tmp_path / "out/.compress/keep-0.5/weights.safetensors")
    checkpoint.model.load_state_dict(weights)
    task = TASKS["classification"]
    labels = [f"LABEL_{i}" for i in range(5)]
    rows = task.read_rows(options.data.calibration, labels=labels, minimum=1)
    batches = task.batches(task.encode(rows, checkpoint.tokenizer, 512), checkpoint.model)
    scoring = ScoringJob(checkpoint.model, heads, half, batches, task)
    again = score_units(METHODS["fisher"](normalize="none"), scoring)
    for name, scores in record["scores"].items():
        for head in half.kept(name):
            assert scores[head] == pytest.approx(again.values[name][head], rel=1e-3)
    dense = first.values
    assert any(record["scores"][n][h] != dense[n][h] for n in dense for h in half.kept(n))


@without_graphs
def test_a_learned_mask_has_exactly_the_units_asked_for(checkpoints, tmp_path):
    out, how = tmp_path / "out", {"method": "hard-concrete", "keep": ["heads=0.6,neurons=48"]}
    (variant,) = run(wanted(checkpoints, tmp_path, multiple="8", **how), out).variants
    record = record_of(out)
    mask = Mask.from_json(record["kept"], record["units"])
    assert (mask.count("heads"), mask.count("neurons")) == (7, 48)
    assert "epoch" in variant.selection
    assert variant.selection in (out / "report.md").read_text(encoding="utf-8")


@without_graphs
def test_trained_weights_are_the_ones_that_are_cut(checkpoints, tmp_path):
    """The artifact answers as the trained model does with the removed heads gated.

    A training that was stopped goes on and ends with the same.
    """
    trained = {"method": "subset", "train_weights": "all", "learning_rate": 1e-3}
    options, out = wanted(checkpoints, tmp_path, **trained), tmp_path / "out"
    run(options, out)
    record = record_of(out)
    mask = Mask.from_json(record["kept"], record["units"])
    checkpoint = open_checkpoint(str(checkpoints["bert"]))
    table = checkpoint.model.bert.embeddings.word_embeddings.weight
    before = table.clone()
    checkpoint.model.load_state_dict(load_file(out / ".compress/keep-0.5/weights.safetensors"))
    assert not torch.equal(before, table)
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
        calibration = calibration_rows(rows, checkpoint)
        given = ModelAndRows(checkpoint, encode(calibration, checkpoint, task), calibration)
        full = Mask.full(checkpoint.layers)
        scored = score(mask or full, method, sublayers, opened=given, context=Context())
        return dict(scored.values)

    skipping, without = scores(checkpoints["bert"], start), scores(tmp_path / "shallow", None)
    assert set(renumbered(skipping, start.dropped)) == set(without)
    for sublayer, values in renumbered(skipping, start.dropped).items():
        assert values == pytest.approx(without[sublayer], rel=1e-4, abs=1e-9)
