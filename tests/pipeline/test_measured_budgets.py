"""Runs for a wanted speed-up, from checkpoint to artifact; refusals of all measured budgets.

Exporting a graph takes seconds and times are never asserted, so most tests make up what machines
would say.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import scipy.special
import torch

from compressor.budgets import Choice
from compressor.budgets.cost_table import trial_mask
from compressor.errors import UsageError
from compressor.export.precision_names import precision_timed
from compressor.export.translator import TranslatorGraphs
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.pipeline import time_masks as timing_masks
from compressor.pipeline.inputs import encode, read
from compressor.pipeline.repair import Repair
from compressor.pipeline.run import run
from compressor.progress import SILENT
from compressor.report.schema import load_report
from compressor.request.recipe import Recipe
from compressor.request.sections import Benchmark
from compressor.results import Throughput
from compressor.runtime import Classifier
from compressor.runtime.artifact import read_artifact
from compressor.tasks import TASKS
from compressor.throughput import Subject
from compressor.training.data import hold_out
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.measured import before_search, shell, state
from tests.helpers.recipes import recipe as read_recipe
from tests.helpers.runs import Progress, recipe_for
from tests.helpers.runtime_artifacts import export
from tests.helpers.scores import timing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Path:
    return toy.marian_with_pieces(tmp_path_factory.mktemp("marian") / "dense")


def choose(recipe: Recipe, out: Path, progress=SILENT) -> Choice:
    """What a run chooses, without building anything."""
    trials = before_search(recipe, out, progress)
    try:
        return trials.plan.budget.choose(trials)
    finally:
        trials.workspace.close()


class Machine:
    """Stands in for `benchmark`: every head of a kind costs so much of the dense time."""

    def __init__(self, costs: dict[str, float], monkeypatch, share: float = 1.0) -> None:
        self.costs = costs
        self.share = share  # of what the cost table promises that comes true
        self.runs: list[list[str]] = []
        self.engines: set[str] = set()
        monkeypatch.setattr(timing_masks, "benchmark", self)
        monkeypatch.setattr(timing_masks, "export_trial", lambda *arguments: None)

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
            share = self.share if subject.name == "choice" else 1.0
            row = timing(1 / (1 - share * saved), subject.name)
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
    # Two encoder and three decoder layers of four heads each.
    assert [row.layers for row in choice.search.costs.rows] == [2] * 4 + [3] * 8
    for row in choice.search.costs.rows:
        assert row.saved_share == pytest.approx((4 - row.units) * costs[row.kind])
    # Where scores say nothing, it is the costly cross-attention that goes.
    assert choice.mask.count("cross") <= 12 - 3
    assert choice.mask.count("encoder_self") + choice.mask.count("decoder_self") >= 18
    assert choice.search.tries[-1].met
    assert "1 choice timed" in choice.text


def test_even_heads_are_timed_and_removed_together(translator, tmp_path, monkeypatch):
    """In the engine that was asked for; a stack costs what its attentions cost together."""
    costs = {"encoder_self": 0.001, "decoder_self": 0.02, "cross": 0.02}
    machine = Machine(costs, monkeypatch)
    options = {"at_engine": "ctranslate2", "engines": ["onnxruntime,ctranslate2"]}
    recipe = speed_recipe(translator, tmp_path, method="random", even_heads=True, **options)
    choice = choose(recipe, tmp_path / "out")
    kinds = ("encoder_self", "decoder_self+cross")
    assert machine.runs[:2] == [["dense", *(f"{kind}={n}" for n in range(4))] for kind in kinds]
    assert machine.engines == {"ctranslate2"}
    assert [row.layers for row in choice.search.costs.rows] == [2] * 4 + [6] * 8
    counts = choice.mask.counts()
    assert {counts[f"{kind}.{n}"] for kind in ("decoder_self", "cross") for n in range(3)} == {2}
    assert {counts[f"encoder_self.{n}"] for n in range(2)} == {4}
    assert choice.search.tries[-1].met


def test_the_number_of_layers_is_searched(classifier, tmp_path, monkeypatch):
    """One more layer goes as long as the repaired model at the same speed is closer to dense."""
    machine = Machine({"encoder_self": 0.04, "encoder_ffn": 0.002}, monkeypatch)
    options = {"drop_layers": "search", "prune": "both", "multiple": "8", "speedup": 1.9}
    recipe = speed_recipe(classifier, tmp_path, recover="reconstruct", **options)
    progress = Progress("trying without layers: encoder.")
    with pytest.raises(KeyboardInterrupt):
        choose(recipe, tmp_path / "out", progress)
    timed = len(machine.runs)
    progress = Progress()
    choice = choose(recipe, tmp_path / "out", progress)
    tries = choice.search.layers
    assert [len(found.layers) for found in tries] == list(range(len(tries)))
    *others, last = [found.divergence for found in tries]
    assert others == sorted(others, reverse=True)
    assert len(tries) == 3 or last > others[-1]  # of three layers one stays
    best = min(tries, key=lambda found: found.divergence)
    assert choice.mask.dropped == set(best.layers)
    assert best.divergence == pytest.approx(divergence(recipe, choice.mask), rel=1e-4)
    assert f"the best of {len(tries)} numbers of layers" in choice.text
    assert len(machine.runs) == timed + len(tries) - 1  # the first try was not timed again
    again = choose(recipe, tmp_path / "out")
    assert (again.mask, again.search) == (choice.mask, choice.search)


def divergence(recipe: Recipe, mask: Mask) -> float:
    """KL(p_dense || p_cut) on the held-out rows, of a cut that is repaired on the others."""
    checkpoint = open_checkpoint(recipe.model.path)
    task = TASKS[checkpoint.task]
    rows = read(recipe.data, checkpoint, task).calibration
    learn, held = hold_out(encode(rows, checkpoint, task), recipe.seed)
    steps = list(recipe.recovery)
    pruned = prune(checkpoint.model, checkpoint.layers, mask)
    cut = Repair(steps, checkpoint, learn, recipe.seed, "cpu", SILENT).run(pruned, mask).model
    (batch,) = task.batches(held, checkpoint.model, batch_tokens=None, batch_size=len(held))
    with torch.no_grad():
        wanted, found = (model(**batch.inputs()).logits for model in (checkpoint.model, cut))
    p, q = (scipy.special.softmax(x.double().numpy(), axis=-1) for x in (wanted, found))
    return float(scipy.special.rel_entr(p, q).sum(-1).mean())


def test_heads_and_neurons_are_timed_and_what_costs_time_goes(translator, tmp_path, monkeypatch):
    costs = {"encoder_self": 1e-9, "decoder_self": 1e-9, "cross": 1e-9}
    machine = Machine(costs | {"encoder_ffn": 0.004, "decoder_ffn": 1e-9}, monkeypatch)
    recipe = speed_recipe(translator, tmp_path, method="random", prune="both", multiple="16")
    choice = choose(recipe, tmp_path / "out")
    timed = {names[1].partition("=")[0]: names[1:] for names in machine.runs}
    assert timed["encoder_ffn"] == [f"encoder_ffn={n}" for n in (0, 16, 32)]  # of 48
    assert timed["decoder_ffn"] == [f"decoder_ffn={n}" for n in (0, 16)]  # of 40
    # A saving of 1 - 1/1.2 takes 42 of the encoder's neurons, in groups of 16.
    assert choice.mask.count("encoder_ffn") == 96 - 48
    assert choice.mask.total() - choice.mask.count() == 48


def test_a_miss_is_tried_again_and_a_stopped_run_goes_on(classifier, tmp_path, monkeypatch):
    machine = Machine({"encoder_self": 0.04}, monkeypatch, share=0.8)
    recipe, out = speed_recipe(classifier, tmp_path, test=None, batch_size="4"), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        choose(recipe, out, Progress("(try 2)"))
    assert state(out) == {"run", "scores", "costs-encoder_self", "timed-choice-1"}
    choice = choose(recipe, out)
    assert [len(names) for names in machine.runs] == [5, 2, 2]  # nothing was timed twice
    assert [found.met for found in choice.search.tries] == [False, True]
    assert choice.search.tries[1].aim > choice.search.tries[0].aim == 1.2
    again = choose(recipe, out)
    assert (again.mask, again.search) == (choice.mask, choice.search)
    assert len(machine.runs) == 3


def test_a_speedup_that_is_not_reached_is_told(classifier, tmp_path, monkeypatch):
    """Four choices, each far slower than the cost table promised, and the fastest is taken."""

    class Stubborn(Machine):
        def __call__(self, subjects, **settings) -> Throughput:
            found = super().__call__(subjects, **settings)
            slow = timing(1.1 + 0.001 * len(self.runs), "choice")
            rows = [slow if row.variant == "choice" else row for row in found.rows]
            return found.model_copy(update={"rows": rows})

    Stubborn({"encoder_self": 0.07}, monkeypatch)
    progress = Progress()
    choice = choose(speed_recipe(classifier, tmp_path), tmp_path / "out", progress)
    assert [found.met for found in choice.search.tries] == [False] * 4
    assert choice.search.tries[-1].kept == str(choice.mask)
    assert (
        "no choice reached 1.2 at batch 4 in 4 tries; the fastest one is taken" in progress.messages
    )


def test_what_cannot_be_reached_ends_with_the_most_that_can(classifier, tmp_path, monkeypatch):
    Machine({"encoder_self": 0.04}, monkeypatch)
    recipe = speed_recipe(classifier, tmp_path, speedup=5.0, floor="1")
    # Nine of twelve heads can go: 1 / (1 - 9 x 0.04).
    with raises(UsageError, "speedup-unreachable") as caught:
        choose(recipe, tmp_path / "out")
    assert "1.562" in str(caught.value)
    assert "3 of 12 heads" in str(caught.value)


def test_a_classifier_is_built_as_fast_as_wanted(short_classifier, tmp_path, monkeypatch):
    Machine({"encoder_self": 0.1}, monkeypatch)
    out = tmp_path / "out"
    report = run(speed_recipe(short_classifier, tmp_path, method="second-order", test=None), out)
    (variant,) = report.variants
    assert sum(map(len, variant.kept.values())) == 2  # 2 x 0.1 > 1 - 1 / 1.2
    assert (variant.name, variant.budget) == ("speedup-1.2-at-batch-4", "speedup 1.2 at batch 4")
    assert report.search.tries[-1].kept == "2 of 4 heads"
    assert 4 in {row.batch_size for row in report.throughput.rows}
    heads = json.loads((out / "units.json").read_text(encoding="utf-8"))
    assert heads["budget"] == variant.budget
    assert {name: heads["kept"][name] for name in variant.kept} == variant.kept
    assert load_report(out / "report.json") == report
    for name in ("report.md", "report.html"):
        assert "The finished model was timed once more" in (out / name).read_text(encoding="utf-8")
    assert read_recipe(out / "recipe.yaml").budget.speedup == 1.2
    assert open_checkpoint(str(out)).mask == Mask.from_json(heads["kept"], heads["units"])
    assert Classifier(out).classify(["w5 w7"])


def test_costs_are_measured_on_the_machine(short_classifier, tmp_path):
    """Nothing made up, so nothing is asserted of the times but that there are some."""
    out = tmp_path / "out"
    done = shell(
        "-m", short_classifier, "-o", out, "--calibration", toy.labels_file(tmp_path / "rows.tsv"),
        "--speedup", 1000, "--at-batch", 2, "-b", 2, "--bench-seconds", 0.01, "--threads", 1,
        "--floor", 3, "--prune", "heads", "--json",
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert json.loads(done.stdout)["id"] == "speedup-unreachable"
    text = (out / ".compress" / "costs-encoder_self.json").read_text(encoding="utf-8")
    rows = json.loads(text)["result"]["rows"]
    assert [row["variant"] for row in rows] == ["dense", "encoder_self=3"]
    assert all(row["sentences_per_second"] > 0 for row in rows)
    assert "timed-choice-1" in state(out)


@pytest.mark.parametrize("kind", ["encoder_self", "decoder_self", "cross"])
def test_only_graphs_that_change_are_exported(translator, tmp_path, monkeypatch, kind):
    """The encoder's graph also makes the keys and values of cross-attention."""
    checkpoint = open_checkpoint(str(translator))
    graphs = tmp_path / "dense" / "onnx"
    graphs.mkdir(parents=True)
    for name in ("encoder.onnx", "decoder.onnx", "tokenizer.json"):
        (graphs / name).write_text("dense", encoding="utf-8")
    skipped = []

    def export(self, network, directory, skip):
        assert network.tokens is None  # both languages share their pieces
        skipped.extend(skip)
        return {"encoder": "encoder.onnx", "decoder": "decoder.onnx"}

    monkeypatch.setattr(TranslatorGraphs, "write", export)
    mask = trial_mask(Mask.full(checkpoint.layers), [kind], 2)
    timing_masks.export_trial(checkpoint, mask, tmp_path / "dense", tmp_path / "trial")
    expected = {"encoder_self": ["decoder"], "decoder_self": ["encoder"], "cross": []}[kind]
    assert skipped == expected
    written = {path.name for path in (tmp_path / "trial" / "onnx").iterdir()}
    assert written == {"graphs.json", "tokenizer.json", *(f"{role}.onnx" for role in expected)}


def test_on_cuda_choices_are_timed_in_the_form_that_runs_there(tmp_path, monkeypatch):
    """Of the dense model too, whose own artifact stays as it is."""
    made = export(toy.classifier(tmp_path / "model"), Mask.full, tmp_path / "dense")
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    before = sorted(path.name for path in (made.directory / "onnx").iterdir())
    seen = []

    def look(subjects: list[Subject], **settings) -> None:
        assert settings["cuda_graphs"] is True
        for subject in subjects:
            artifact = read_artifact(subject.directory)
            seen.append((subject.name, subject.precision, artifact.made_for))
            assert (subject.directory / "onnx" / artifact.precisions["fp16"]["model"]).exists()

    monkeypatch.setattr(timing_masks, "benchmark", look)
    rows = TASKS["classification"].read_rows(toy.labels_file(tmp_path / "rows.tsv"))
    workspace = SimpleNamespace(progress=SILENT, state=tmp_path / "state")
    timer = timing_masks.Timer(
        checkpoint, made.directory, rows, Benchmark(), "cuda", precision="fp16"
    )
    half = trial_mask(Mask.full(checkpoint.layers), ["encoder_self"], 2)
    timer.time(workspace, {"half": half}, 1)
    assert seen == [(name, "fp16", {"fp16": "cuda"}) for name in ("dense", "half")]
    assert sorted(path.name for path in (made.directory / "onnx").iterdir()) == before
    assert (precision_timed(("fp32", "fp16"), "cuda"), precision_timed(("fp32",), "cuda")) == (
        "fp16", "fp32",
    )  # fmt: skip
    assert precision_timed(("fp32", "fp16"), "cpu") == "fp32"


@pytest.mark.parametrize(
    ("options", "problem", "detail"),
    [
        ({"speedup": 1.3, "at_batch": 16}, "batch-size-not-measured", "16"),
        (
            {"speedup": 1.3, "at_batch": 4, "bench": False},
            "options-exclude-each-other", "--no-bench",
        ),
        (
            {"speedup": 1.3, "at_batch": 4, "keep": ["0.5"]},
            "options-exclude-each-other", "--keep and --speedup",
        ),
        (
            {"speedup": 1.3, "at_batch": 4, "max_drop": "1"},
            "options-exclude-each-other", "--speedup and --max-drop",
        ),
        ({"speedup": 1.3, "at_batch": 4, "steps": 2}, "option-without-use", "--steps 2"),
        (
            {"speedup": 1.3, "at_batch": 4, "floor": "4", "prune": "heads"},
            "floors-too-high", "12",
        ),
        (
            {"speedup": 1.3, "at_batch": 4, "at_engine": "openvino"},
            "engine-not-exported", "--engines onnxruntime,openvino",
        ),
        ({"keep": ["0.5"], "even_heads": True}, "option-without-use", "--even-heads"),
        ({"max_drop": "0.3", "remove": ["2"]}, "options-exclude-each-other", "--remove"),
        ({"max_drop": "0.3", "test": None}, "test-rows-missing", "--max-drop 0.3"),
        ({"max_drop": "0.3", "method": "subset"}, "options-exclude-each-other", "taylor"),
        ({"keep": ["0.5"], "drop_proof": "measured"}, "option-without-use", "--drop-proof"),
        ({"max_drop": "-1"}, "option-invalid", "--max-drop -1"),
        ({"max_drop": "1", "max_metric_drop": ["bleu=1"]}, "metric-of-another-task", "accuracy"),
    ],
)  # fmt: skip
def test_refusals_come_before_anything_is_written(classifier, tmp_path, options, problem, detail):
    with raises(UsageError, problem) as caught:
        run(recipe_for(classifier, tmp_path, **{"keep": []} | options), tmp_path / "out")
    assert detail in str(caught.value)
    assert not (tmp_path / "out").exists()
