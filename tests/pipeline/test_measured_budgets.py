"""Runs for a wanted speed-up, from checkpoint to artifact; refusals of all measured budgets.

Exporting a graph takes seconds and times are never asserted, so most tests make up what machines
would say.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import scipy.special
import torch

from compressor.budgets import shapes
from compressor.budgets.cost_table import trial_mask
from compressor.budgets.reach import RETRIES
from compressor.export.precision_names import precision_timed
from compressor.export.precisions import write_precision
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.options.inputs import calibration_rows
from compressor.options.recipe import Recipe
from compressor.pipeline.run import run
from compressor.pipeline.setup import open_run, prepare
from compressor.progress import SILENT
from compressor.recovery import distillation, planning, probes
from compressor.recovery.planning import RecoveryPlan, recover
from compressor.report.schema import load_report
from compressor.runtime.opening import read_artifact
from compressor.steps.context import Context
from compressor.steps.results import OutputPath, Throughput
from compressor.steps.values import DecoderTokens, Exported
from compressor.tasks import TASKS
from compressor.tasks.opened import ModelAndRows, encode
from compressor.throughput import Subject
from compressor.throughput import timer as timing_step
from compressor.training.data import hold_out
from compressor.training.loop import train
from compressor.training.text import Text
from tests.helpers import toy
from tests.helpers.command_line import compress
from tests.helpers.runs import Progress, recipe_for
from tests.helpers.runs import chosen_by_run as choose
from tests.helpers.runs import recipe as read_recipe
from tests.helpers.runtime_artifacts import export
from tests.helpers.scores import timing

pytestmark = pytest.mark.slow


@pytest.fixture
def translator(checkpoints) -> Path:
    return checkpoints["marian"]


class Machine:
    """Stands in for `benchmark`: every head of a kind costs so much of the dense time."""

    def __init__(self, costs: dict[str, float], monkeypatch) -> None:
        self.costs = costs
        self.runs: list[list[str]] = []
        self.engines: set[str] = set()
        monkeypatch.setattr(timing_step, "benchmark", self)
        monkeypatch.setattr(timing_step, "export_trial", lambda *arguments: None)

    def __call__(self, subjects: list[Subject], *, batch_sizes, memory, **settings) -> Throughput:
        (batch_size,) = batch_sizes
        assert memory is False
        self.runs.append([subject.name for subject in subjects])
        self.engines |= {subject.engine for subject in subjects}
        rows = []
        for subject in subjects:
            assert subject.name == "dense" or ".writing-" in str(subject.directory)
            saved = sum(
                self.costs.get(name.rpartition(".")[0], 0.0) * (count - subject.counts.get(name, 0))
                for name, count in subjects[0].counts.items()
            )
            row = timing(1 / (1 - saved), subject.name)
            rows.append(row.model_copy(update={"batch_size": batch_size}))
        return Throughput(
            provider="none", device="cpu", precision="fp32", threads=1, lengths="made up", rows=rows
        )


def speed_recipe(model: Path, tmp_path: Path, **options) -> Recipe:
    values = {"keep": [], "speedup": 1.2, "at_batch": 4, "floor": "0", "prune": "heads"}
    values["bench_seconds"] = 0.01
    return recipe_for(model, tmp_path, **values | options)


def test_every_kind_of_attention_is_timed_at_every_count(translator, tmp_path, monkeypatch):
    costs = {"encoder_self": 0.001, "decoder_self": 0.001, "cross": 0.05}
    machine = Machine(costs, monkeypatch)
    choice = choose(speed_recipe(translator, tmp_path, method="random"), tmp_path / "out")
    kinds = ("encoder_self", "decoder_self", "cross")
    assert machine.runs[:3] == [["dense", *(f"{kind}={n}" for n in range(4))] for kind in kinds]
    # Two layers a stack, of four heads each; one cross-attention stays, or the encoder would go.
    assert [row.layers for row in choice.search.costs.rows] == [2] * 11 + [1]
    for row in choice.search.costs.rows:
        assert row.saved_share == pytest.approx((4 - row.units) * costs[row.kind])
    # Where scores say nothing, it is the costly cross-attention that goes.
    assert choice.mask.count("cross") <= 8 - 3
    assert choice.mask.count("encoder_self") + choice.mask.count("decoder_self") >= 14
    assert choice.search.tries[-1].met
    assert "1 choice timed" in choice.text


def test_even_heads_are_timed_and_removed_together(translator, tmp_path, monkeypatch):
    """In the engine that was asked for; a stack costs what its attentions cost together."""
    costs = {"encoder_self": 0.001, "decoder_self": 0.03, "cross": 0.03}
    machine = Machine(costs, monkeypatch)
    options = {"at_engine": "ctranslate2", "engines": ["onnxruntime,ctranslate2"]}
    recipe = speed_recipe(translator, tmp_path, method="random", even_heads=True, **options)
    choice = choose(recipe, tmp_path / "out")
    kinds = ("encoder_self", "decoder_self+cross")
    assert machine.runs[:2] == [["dense", *(f"{kind}={n}" for n in range(4))] for kind in kinds]
    assert machine.engines == {"ctranslate2"}
    # One cross-attention stays where the encoder would go with the last.
    assert [row.layers for row in choice.search.costs.rows] == [2] * 4 + [4, 4, 4, 3] * 2
    counts = choice.mask.counts()
    assert {counts[f"{kind}.{n}"] for kind in ("decoder_self", "cross") for n in range(2)} == {2}
    assert {counts[f"encoder_self.{n}"] for n in range(2)} == {4}
    assert choice.search.tries[-1].met


def test_the_number_of_layers_is_searched(checkpoints, tmp_path, monkeypatch):
    """One more layer goes as long as the repaired model at the same speed is closer to dense."""
    machine = Machine({"encoder_self": 0.04, "encoder_ffn": 0.002}, monkeypatch)
    options = {"drop_layers": "search", "prune": "both", "multiple": "8", "speedup": 1.9}
    recipe = speed_recipe(checkpoints["bert"], tmp_path, recover="reconstruct", **options)
    progress = Progress("trying without layers: encoder.")
    with pytest.raises(KeyboardInterrupt):
        choose(recipe, tmp_path / "out", progress)
    choice = choose(recipe, tmp_path / "out")
    timed, machine.runs = machine.runs, []
    assert choose(recipe, tmp_path / "whole").mask == choice.mask
    assert machine.runs == timed  # none was timed again
    tries = choice.search.layers
    assert [len(found.layers) for found in tries] == list(range(len(tries)))
    *others, last = [found.divergence for found in tries]
    assert others == sorted(others, reverse=True)
    assert len(tries) == 3 or last > others[-1]  # of three layers one stays
    best = min(tries, key=lambda found: found.divergence)
    assert choice.mask.dropped == set(best.layers)
    assert best.divergence == pytest.approx(divergence(recipe, choice.mask), rel=1e-4)
    assert f"the best of {len(tries)} numbers of layers" in choice.text
    # Two kinds, and choices for each try: this machine's last layer saves as much as others, which
    # counted multiply-adds deny, so that first choices miss.
    choices = machine.runs[2:]
    assert len(tries) <= len(choices) <= (1 + RETRIES) * len(tries)
    assert all(len(subjects) == 2 for subjects in choices)
    again = choose(recipe, tmp_path / "out")
    assert (again.mask, again.search) == (choice.mask, choice.search)


def test_layers_are_weighed_by_what_training_brings_back(checkpoints, tmp_path, monkeypatch):
    """A stopped search goes on with the same plan; the trainings are those of the recovery."""
    Machine({"encoder_self": 0.04, "encoder_ffn": 0.002}, monkeypatch)
    monkeypatch.setattr(shapes, "LEAST_STEPS", 4)
    monkeypatch.setattr(shapes, "MOST_STEPS", 12)
    # The run's own training would take hours, and never begins here.
    options = {"drop_layers": "search", "prune": "both", "multiple": "8", "speedup": 1.9}
    recipe = speed_recipe(
        checkpoints["bert"], tmp_path, recover="reconstruct+distill", distill_epochs=1_000_000,
        distill_batch=16, **options,
    )  # fmt: skip
    progress = Progress("the run's own training takes about")
    with pytest.raises(KeyboardInterrupt):
        choose(recipe, tmp_path / "out", progress)
    planned = progress.messages[-1]
    monkeypatch.setattr(probes, "recover_and_measure", None)  # the cost is not measured again
    progress = Progress()
    choice = choose(recipe, tmp_path / "out", progress)
    assert planned in progress.messages
    tries, steps = choice.search.layers, choice.search.probe_steps
    assert f"{steps} steps of training each" in planned
    assert len(tries) > 1
    best = min(tries, key=lambda found: found.divergence)
    assert choice.mask.dropped == set(best.layers)
    # The same model, trained for as many steps once more, all of them.
    all_steps = {"steps": steps, "patience": steps}
    short = recipe.with_recovery(
        [x.model_copy(update=all_steps if x.trains else {}) for x in recipe.recovery]
    )
    assert best.divergence == pytest.approx(divergence(short, choice.mask), rel=1e-4)
    assert f"after {steps} steps of training" in choice.text


def translate(
    dense: Exported, beams: int, *, directory: Path, text: Text, context: Context
) -> OutputPath:
    """Stands in for the dense model, which is not exported here."""
    path = directory / "translations.txt"
    path.write_text("w4 w5\n" * text.rows, encoding="utf-8")
    return path


def test_a_translators_candidates_learn_from_the_text(translator, tmp_path, monkeypatch):
    """They differ in decoder layers, and their steps are those of rows and lines together."""
    Machine({"decoder_self": 0.03, "cross": 0.03}, monkeypatch)
    monkeypatch.setattr(shapes, "LEAST_STEPS", 4)
    monkeypatch.setattr(shapes, "MOST_STEPS", 6)
    text = tmp_path / "lines.txt"
    text.write_text("w3 w4 w5\nw6 w7\n" * 20, encoding="utf-8")
    monkeypatch.setattr(planning, "translate", translate)
    seen: list[tuple[int, int]] = []  # steps, lines of each training

    def note(problem, data, schedule, *others):
        seen.append((schedule.steps, data.stored.rows))
        return train(problem, data, schedule, *others)

    monkeypatch.setattr(distillation, "train", note)
    recipe = speed_recipe(
        translator, tmp_path, recover="distill", distill_text=str(text),
        distill_epochs=1_000_000, distill_batch=8, drop_layers="search",
    )  # fmt: skip
    choice = choose(recipe, tmp_path / "out")
    tries, steps = choice.search.layers, choice.search.probe_steps
    # Half of the encoder goes as well where the decoder's number of layers is found.
    of_encoder = [sum(name.startswith("encoder") for name in found.layers) for found in tries]
    assert set(of_encoder) == {0, 1}
    assert of_encoder[:2] == [0, 0]
    trained = [found for found in tries if found.divergence is not None]
    assert len(trained) > 1
    assert seen == [(probes.COST_STEPS, 40), *[(steps, 40)] * len(trained)]
    best = min(trained, key=lambda found: found.divergence)
    assert choice.mask.dropped == set(best.layers)


def divergence(recipe: Recipe, mask: Mask) -> float:
    """KL(p_dense || p_cut) on the held-out rows, of a cut that is repaired on the others."""
    checkpoint = open_checkpoint(recipe.model.path)
    task = TASKS[checkpoint.task]
    rows = calibration_rows(recipe.data, checkpoint)
    examples = encode(rows, checkpoint, task)
    learn, held = hold_out(examples, recipe.seed)
    if any(x.trains for x in recipe.recovery):
        learn = examples  # of which training holds out the same
    how, pruned = RecoveryPlan(recipe.recovery), prune(checkpoint.model, checkpoint.layers, mask)
    given, context = ModelAndRows(checkpoint, learn), Context(seed=recipe.seed)
    cut = recover(how, pruned, mask, opened=given, context=context).model
    (batch,) = task.batches(held, checkpoint.model, batch_tokens=None, batch_size=len(held))
    with torch.no_grad():
        wanted, found = (model(**batch.inputs()).logits for model in (checkpoint.model, cut))
    p, q = (scipy.special.softmax(x.double().numpy(), axis=-1) for x in (wanted, found))
    return float(scipy.special.rel_entr(p, q).sum(-1).mean())


def test_a_classifier_is_built_as_fast_as_wanted(checkpoints, tmp_path, monkeypatch):
    Machine({"encoder_self": 0.1}, monkeypatch)
    out = tmp_path / "out"
    report = run(
        speed_recipe(checkpoints["short-bert"], tmp_path, method="second-order", test=None), out
    )
    (variant,) = report.variants
    assert sum(map(len, variant.kept.values())) == 2  # 2 x 0.1 > 1 - 1 / 1.2
    assert (variant.name, variant.budget) == ("speedup-1.2-at-batch-4", "speedup 1.2 at batch 4")
    assert report.search.tries[-1].kept == "2 of 4 heads"
    assert 4 in {row.batch_size for row in report.throughput.rows}
    assert load_report(out / "report.json") == report
    assert "The finished model was timed once more" in (out / "report.md").read_text("utf-8")
    assert read_recipe(out / "recipe.yaml").budget.speedup == 1.2


@pytest.mark.parametrize(("exported", "precision"), [("fp32", "fp32"), ("fp32,int8", "int8")])
def test_costs_are_measured_on_the_machine(exported: str, precision: str, checkpoints, tmp_path):
    """Nothing made up, so nothing is asserted of the times but that there are some."""
    rows, out = toy.labels_file(tmp_path / "rows.tsv"), tmp_path / "out"
    done = compress(
        "run", "--device", "cpu",
        "-m", checkpoints["short-bert"], "-o", out, "--calibration", rows,
        "--speedup", 1000, "--at-batch", 8, "-b", 8, "--bench-seconds", 0.01, "--threads", 1,
        "--floor", 3, "--prune", "heads", "--json", "--precision", exported,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert json.loads(done.stdout)["id"] == "speedup-unreachable"
    records = (out / ".compress").glob("time_masks-*.json")
    found = [json.loads(record.read_text(encoding="utf-8"))["result"] for record in records]
    assert {result["precision"] for result in found} == {precision}
    timed = [result["rows"] for result in found]
    assert all(row["sentences_per_second"] > 0 for rows in timed for row in rows)
    names = sorted([row["variant"] for row in rows] for rows in timed)
    assert names == [["dense", "choice-1"], ["dense", "encoder_self=3"]]


def test_on_cuda_choices_are_timed_in_the_form_that_runs_there(checkpoints, tmp_path, monkeypatch):
    """Of the dense model too, whose own artifact stays as it is."""
    model, out = checkpoints["short-bert"], tmp_path / "out"
    made = export(model, Mask.full, tmp_path / "dense")
    write_precision(made.directory, "fp16", (), device="cuda")
    before = sorted(path.name for path in (made.directory / "onnx").iterdir())
    seen = []

    def look(subjects: list[Subject], **settings) -> None:
        assert settings["cuda_graphs"] is True
        for subject in subjects:
            artifact = read_artifact(subject.directory)
            seen.append((subject.name, subject.precision, artifact.made_for))
            assert (subject.directory / "onnx" / artifact.precisions["fp16"]["model"]).exists()

    monkeypatch.setattr(timing_step, "benchmark", look)
    recipe = speed_recipe(model, tmp_path, method="magnitude")
    plan, opened = prepare(recipe, out, SILENT)
    half = trial_mask(opened.prunable.limits.full, ["encoder_self"], 2)
    with open_run(plan, opened, SILENT) as context:
        on_cuda = replace(context, device="cuda")
        precision = precision_timed(("fp32", "fp16"), "cuda")
        dense = Exported(made.directory, None)
        how = 1, dense, DecoderTokens(None), "onnxruntime", precision, plan.measuring.timing
        timing_step.time_masks(
            {"half": half},
            *how,
            opened=opened.source,
            rows=opened.prunable.data.timed,
            context=on_cuda,
        )
    assert seen == [(name, "fp16", {"fp16": "cuda"}) for name in ("dense", "half")]
    assert sorted(path.name for path in (made.directory / "onnx").iterdir()) == before
