"""Runs with a measured budget, from checkpoint to artifact.

Exporting a graph takes seconds and times are never asserted, so most tests make up what machines
and models would say; a run of each sort does everything for real.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from compressor.budgets.counts import SpeedBudget
from compressor.budgets.speed import trial_mask
from compressor.errors import UsageError
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.sublayers import Mask
from compressor.pipeline import search as searching
from compressor.pipeline import time_masks as timing_masks
from compressor.pipeline.load import load, prepare, read
from compressor.pipeline.recipe import Recipe
from compressor.pipeline.run import run
from compressor.pipeline.select import Choice, score
from compressor.progress import SILENT
from compressor.report.budgets import SEARCHED_ON_TEST
from compressor.report.schema import load_report
from compressor.results import QualitySearch, Throughput, Variant
from compressor.runtime import Classifier
from compressor.tasks import get_task
from compressor.throughput import Subject
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.recipes import recipe as read_recipe
from tests.helpers.runs import Progress, recipe_for
from tests.helpers.scores import timing

pytestmark = pytest.mark.usefixtures("shared_exports")


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Path:
    return toy.marian_with_pieces(tmp_path_factory.mktemp("marian") / "dense")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    return toy.classifier(tmp_path_factory.mktemp("bert") / "dense")


@pytest.fixture(scope="module")
def short_classifier(classifier, tmp_path_factory) -> Path:
    """The classifier's first layer alone: graphs are exported in a third of the time."""
    loaded = open_checkpoint(str(classifier))
    loaded.model.bert.encoder.layer = loaded.model.bert.encoder.layer[:1]
    loaded.model.config.num_hidden_layers = 1
    return save(loaded, tmp_path_factory.mktemp("bert") / "short")


@pytest.fixture(scope="module")
def short_translator(translator, tmp_path_factory) -> Path:
    """The translator's first layers alone."""
    loaded = open_checkpoint(str(translator))
    parts = loaded.model.model.encoder, loaded.model.model.decoder
    for part in parts:
        part.layers = part.layers[:1]
    loaded.model.config.update({"encoder_layers": 1, "decoder_layers": 1, "num_hidden_layers": 1})
    return save(loaded, tmp_path_factory.mktemp("marian") / "short")


def save(loaded: Checkpoint, directory: Path) -> Path:
    loaded.model.save_pretrained(directory)
    loaded.tokenizer.save_pretrained(directory)
    return directory


def shell(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "compressor", "run", *map(str, arguments), "--device", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def choose(recipe: Recipe, out: Path, progress=SILENT) -> Choice:
    """What a run chooses, without building anything; the dense model is only a name."""
    checkpoint = load(recipe.model)
    task = get_task(checkpoint.entry.task)
    data = read(recipe.data, checkpoint, task)
    context = prepare(recipe, checkpoint, task, data, out, progress)
    (plan,) = context.plans
    counts = context.full.counts()
    dense = Variant(
        name="dense", directory="nowhere", budget="", kept=context.full.to_json(), heads=counts,
        parameters=0, checkpoint_bytes=0, onnx_bytes=0, precision="fp32",
    )  # fmt: skip
    scores = score(context)
    if isinstance(plan.budget, SpeedBudget):
        return searching.search_speed(context, plan.budget, scores, dense)
    return searching.search_quality(context, plan, plan.budget, scores, dense, Models.build)


def state(out: Path) -> set[str]:
    """Names of finished stages; nothing temporary may be left."""
    entries = list((out / ".compress").iterdir())
    assert not [path for path in entries if path.name.startswith(("trial-", "candidate-")) and
                path.is_dir()]  # fmt: skip
    return {path.stem for path in entries}


class Machine:
    """Stands in for `benchmark`: every head of a kind costs so much of the dense time."""

    def __init__(self, costs: dict[str, float], monkeypatch, share: float = 1.0) -> None:
        self.costs = costs
        self.share = share  # of what the cost table promises that comes true
        self.runs: list[list[str]] = []
        monkeypatch.setattr(timing_masks, "benchmark", self)
        monkeypatch.setattr(timing_masks, "export_trial", lambda *arguments: None)

    def __call__(self, subjects: list[Subject], *, batch_sizes, memory, **settings) -> Throughput:
        (batch_size,) = batch_sizes
        assert memory is False
        self.runs.append([subject.name for subject in subjects])
        rows = []
        for subject in subjects:
            assert subject.name == "dense" or subject.directory.parent.name.startswith("trial-")
            saved = sum(
                self.costs[name.rpartition(".")[0]] * (subjects[0].counts[name] - count)
                for name, count in subject.counts.items()
            )
            share = self.share if subject.name == "choice" else 1.0
            row = timing(1 / (1 - share * saved), subject.name)
            rows.append(row.model_copy(update={"batch_size": batch_size}))
        return Throughput(
            provider="none", device="cpu", precision="fp32", threads=1, lengths="made up", rows=rows
        )


def speed_recipe(model: Path, tmp_path: Path, **options) -> Recipe:
    values = {"keep": [], "speedup": 1.2, "at_batch": 4, "floor": "0", "bench_seconds": 0.01}
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
        assert row.saved_share == pytest.approx((4 - row.heads) * costs[row.kind])
    # Where scores say nothing, it is the costly cross-attention that goes.
    assert choice.mask.count("cross") <= 12 - 3
    assert choice.mask.count("encoder_self") + choice.mask.count("decoder_self") >= 18
    assert choice.search.tries[-1].met
    assert "1 choice timed" in choice.text


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
    assert choice.mask.count() == choice.search.tries[-1].kept
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
    assert "3 of 12" in str(caught.value)


def test_a_classifier_is_built_as_fast_as_wanted(short_classifier, tmp_path, monkeypatch):
    Machine({"encoder_self": 0.1}, monkeypatch)
    out = tmp_path / "out"
    report = run(speed_recipe(short_classifier, tmp_path, method="second-order", test=None), out)
    (variant,) = report.variants
    assert sum(map(len, variant.kept.values())) == 2  # 2 x 0.1 > 1 - 1 / 1.2
    assert (variant.name, variant.budget) == ("speedup-1.2-at-batch-4", "speedup 1.2 at batch 4")
    assert report.search.tries[-1].kept == 2
    assert 4 in {row.batch_size for row in report.throughput.rows}
    heads = json.loads((out / "units.json").read_text(encoding="utf-8"))
    assert (heads["budget"], heads["kept"]) == (variant.budget, variant.kept)
    assert load_report(out / "report.json") == report
    for name in ("report.md", "report.html"):
        assert "The finished model was timed once more" in (out / name).read_text(encoding="utf-8")
    assert read_recipe(out / "recipe.yaml").budget.speedup == 1.2
    assert open_checkpoint(str(out)).mask == Mask.from_json(variant.kept, variant.heads)
    assert Classifier(out).classify(["w5 w7"])


def test_costs_are_measured_on_the_machine(short_classifier, tmp_path):
    """Nothing made up, so nothing is asserted of the times but that there are some."""
    out = tmp_path / "out"
    done = shell(
        "-m", short_classifier, "-o", out, "--calibration", toy.labels_file(tmp_path / "rows.tsv"),
        "--speedup", 1000, "--at-batch", 2, "-b", 2, "--bench-seconds", 0.01, "--threads", 1,
        "--floor", 3, "--json",
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

    def export(model, layers, mask, directory, skip, tokens):
        assert tokens is None  # both languages share their pieces
        skipped.extend(skip)
        return {"encoder": "encoder.onnx", "decoder": "decoder.onnx"}

    monkeypatch.setattr(timing_masks, "export_graphs", export)
    mask = trial_mask(Mask.full(checkpoint.layers), kind, 2)
    timing_masks.export_trial(checkpoint, mask, tmp_path / "dense", tmp_path / "trial")
    expected = {"encoder_self": ["decoder"], "decoder_self": ["encoder"], "cross": []}[kind]
    assert skipped == expected
    written = {path.name for path in (tmp_path / "trial" / "onnx").iterdir()}
    assert written == {"graphs.json", "tokenizer.json", *(f"{role}.onnx" for role in expected)}


def drop_recipe(model: Path, tmp_path: Path, **options) -> Recipe:
    return recipe_for(model, tmp_path, **{"keep": [], "max_drop": ["20"], "bench": False} | options)


class Models:
    """Stands in for models that are built and run: with fewer than `enough` heads all is wrong."""

    built: ClassVar[list[int]] = []

    def __init__(self, recipe: Recipe, enough: int, monkeypatch) -> None:
        lines = Path(recipe.data.test).read_text(encoding="utf-8").splitlines()[1:]
        self.right = [line.split("\t")[1] for line in lines]
        self.enough = enough
        self.built.clear()
        monkeypatch.setattr(searching, "answers", self.answers)
        monkeypatch.setattr(searching, "answer_rows", lambda *arguments: self.right)

    @classmethod
    def build(cls, context, plan, choice, directory) -> None:
        assert directory.parent.is_dir()
        cls.built.append(choice.mask.count())

    def answers(self, directory, rows, device, num_beams, progress) -> list[str]:
        if self.built[-1] >= self.enough:
            return self.right
        return ["LABEL_0" if label != "LABEL_0" else "LABEL_1" for label in self.right]


def test_the_search_builds_few_models_and_a_stopped_one_goes_on(classifier, tmp_path, monkeypatch):
    recipe, out = drop_recipe(classifier, tmp_path, method="magnitude"), tmp_path / "out"
    models = Models(recipe, 8, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        choose(recipe, out, Progress("trying 9 of 12 heads"))
    assert state(out) == {"run", "scores", *(f"candidate-max-drop-20-{n}" for n in (3, 7))}
    choice = choose(recipe, out)
    assert models.built == [3, 7, 9, 8]
    assert choice.mask.count() == 8
    judged = {probe.kept: probe.accepted for probe in choice.search.probes}
    assert judged == {3: False, 7: False, 9: True, 8: True}
    assert all(probe.comparison.metric == "accuracy" for probe in choice.search.probes)
    assert "4 models built and run" in choice.text
    assert state(out) >= {"candidate-max-drop-20-9", "candidate-max-drop-20-8"}
    with raises(UsageError, "output-of-another-run") as caught:
        choose(drop_recipe(classifier, tmp_path, method="magnitude", max_drop=["10"]), out)
    assert "max_drop=20.0, now it is 10.0" in str(caught.value)
    # Rules for the gate are not part of what was run.
    rules = ["20", "accuracy=1"]
    more = drop_recipe(classifier, tmp_path, method="magnitude", max_drop=rules)
    assert choose(more, out).mask == choice.mask


def own_labels(model: Path, path: Path) -> Path:
    """Rows whose labels are the dense model's own answers, so that every change is a mistake."""
    rows = toy.labels_file(path, rows=60, seed=2).read_text(encoding="utf-8").splitlines()[1:]
    texts = [row.split("\t")[0] for row in rows]
    loaded = open_checkpoint(str(model))
    batch = loaded.tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        best = loaded.model(**batch).logits.argmax(-1).tolist()
    lines = [f"{text}\tLABEL_{label}" for text, label in zip(texts, best, strict=True)]
    path.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    return path


def check_search(out: Path, drop: float, metric: str) -> QualitySearch:
    """Probes judged as their intervals say; the artifact, built anew, is as its probe was."""
    report = load_report(out / "report.json")
    search, (variant,) = report.search, report.variants
    assert isinstance(search, QualitySearch)
    assert (search.drop, search.metric) == (drop, metric)
    for probe in search.probes:
        assert probe.accepted == (not probe.comparison.interval[1] < -drop)
    judged = {probe.kept: probe for probe in search.probes}
    kept = sum(map(len, variant.kept.values()))
    if kept < sum(variant.heads.values()):
        assert judged[kept].accepted
        assert variant.comparisons[0] == judged[kept].comparison
    assert kept - 1 not in judged or not judged[kept - 1].accepted
    state(out)
    return search


def test_a_classifier_loses_heads_until_the_rows_show_it(short_classifier, tmp_path):
    test, out = own_labels(short_classifier, tmp_path / "own.tsv"), tmp_path / "out"
    recipe = drop_recipe(
        short_classifier, tmp_path, max_drop=["0"], recover="reconstruct", test=str(test)
    )
    run(recipe, out)
    search = check_search(out, 0.0, "accuracy")
    assert search.probes[0].kept == 1
    assert search.probes[0].comparison.dense == 100
    assert read_recipe(out / "recipe.yaml") == recipe


def test_a_translator_is_searched_through_the_shell(short_translator, tmp_path):
    out = tmp_path / "out"
    done = shell(
        "-m", short_translator, "-o", out,
        "--calibration", toy.pairs_file(tmp_path / "calibration.tsv"),
        "--test", toy.pairs_file(tmp_path / "test.tsv", seed=1), "--max-drop", 0.3,
        "--max-drop", "bleu=100", "--floor", "encoder_self=4,decoder_self=4,cross=3",
        "--resamples", 100, "--no-bench", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gate_met"] is True
    assert check_search(out, 0.3, "bleu").probes[0].kept == 11
    assert "trying 11 of 12 heads" in done.stderr
    assert SEARCHED_ON_TEST in (out / "README.md").read_text(encoding="utf-8")
    assert "max-drop 0.3" in (out / "report.html").read_text(encoding="utf-8")


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
            {"speedup": 1.3, "at_batch": 4, "max_drop": ["1"]},
            "options-exclude-each-other", "--speedup and --max-drop",
        ),
        ({"speedup": 1.3, "at_batch": 4, "steps": 2}, "option-without-use", "--steps 2"),
        ({"speedup": 1.3, "at_batch": 4, "floor": "4"}, "floors-too-high", "12"),
        ({"max_drop": ["0.3", "0.5"]}, "options-exclude-each-other", "0.3, 0.5"),
        ({"max_drop": ["0.3"], "remove": ["2"]}, "options-exclude-each-other", "--remove"),
        ({"max_drop": ["0.3"], "test": None}, "test-rows-missing", "--max-drop 0.3"),
        ({"max_drop": ["0.3"], "method": "subset"}, "options-exclude-each-other", "taylor"),
        ({"max_drop": ["-1"]}, "option-invalid", "from 0 up"),
        ({"max_drop": ["1", "bleu=1"]}, "metric-of-another-task", "accuracy"),
    ],
)  # fmt: skip
def test_refusals_come_before_anything_is_written(classifier, tmp_path, options, problem, detail):
    with raises(UsageError, problem) as caught:
        run(recipe_for(classifier, tmp_path, **{"keep": []} | options), tmp_path / "out")
    assert detail in str(caught.value)
    assert not (tmp_path / "out").exists()
