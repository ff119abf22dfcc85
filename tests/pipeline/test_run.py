"""Whole runs on toy checkpoints: artifacts, resuming, reproducibility, refusals."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import compressor
from compressor.errors import InputError, UsageError
from compressor.evaluation.bounds import score_bound
from compressor.model.checkpoint import open_checkpoint
from compressor.pipeline.recipe import Recipe, ScoreRequest
from compressor.pipeline.run import run
from compressor.pipeline.single_steps import score_checkpoint
from compressor.report.schema import Report, load_report
from compressor.runtime import Classifier, Translator
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.recipes import recipe, request
from tests.helpers.runs import Progress, hashes, recipe_for, short

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Path:
    return toy.marian_with_pieces(tmp_path_factory.mktemp("marian") / "dense")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    return toy.classifier(tmp_path_factory.mktemp("bert") / "dense")


@pytest.fixture(scope="module")
def inputs(once) -> dict[str, str]:
    """The files that most tests share, as options."""
    made = once(
        "pipeline-inputs", lambda folder: recipe_for(toy.classifier(folder / "bert"), folder)
    )
    return {
        "model": str(made / "bert"),
        "calibration": str(made / "calibration.tsv"),
        "test": str(made / "test.tsv"),
    }


@pytest.fixture(scope="module")
def finished(inputs, once, tmp_path_factory) -> Path:
    """The output of a short run of them; tests may run it again, but must not change it."""
    own = tmp_path_factory.mktemp("finished") / "out"
    made = once("pipeline-finished", lambda out: run(short(**inputs), out))
    return shutil.copytree(made, own)


def test_a_translator_from_checkpoint_to_artifact(translator, tmp_path):
    out = tmp_path / "out"
    report = run(recipe_for(translator, tmp_path, floor="0"), out)
    (variant,) = report.variants
    assert sum(map(len, variant.kept.values())) == 16  # half of 2 x 4 + 2 x 3 x 4
    assert {c.name for c in variant.checks} >= {
        "pruned equals masked", "reloaded equals saved", "ONNX equals PyTorch",
        "ONNX translates as PyTorch",
    }  # fmt: skip
    assert variant.parameters == sum(p.numel() for p in _stored(out).values())
    assert {row.batch_size for row in report.throughput.rows} == {2, 4}
    assert {c.metric for c in variant.comparisons} == {"bleu", "chrf"}
    assert load_report(out / "report.json").variants[0].kept == variant.kept
    _check_manifest(out)
    # What is served equals what PyTorch generates from the reloaded checkpoint.
    loaded = open_checkpoint(str(out))
    texts = ["w5 und w7.", "w9 w9 w3"]
    batch = loaded.tokenizer(texts, return_tensors="pt", padding=True)
    ids = loaded.model.generate(**batch, num_beams=1)
    expected = loaded.tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert Translator(out).translate(texts, num_beams=1) == expected


def _stored(out: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {k: v for k, v in load_file(out / "model.safetensors").items() if "logits_bias" not in k}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_manifest(out: Path) -> None:
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    listed = manifest["files"]
    on_disk = {
        path.relative_to(out).as_posix()
        for path in out.rglob("*")
        if path.is_file() and ".compress" not in path.parts and path.name != "manifest.json"
    }
    assert set(listed) == on_disk
    for name, facts in listed.items():
        assert sha256(out / name) == facts["sha256"]
    needed = {"config.json", "units.json", "recipe.yaml", "report.html", "README.md"}
    needed |= {"modeling_pruned.py"}
    assert needed <= on_disk


def test_several_budgets_give_several_artifacts(inputs, tmp_path):
    out = tmp_path / "out"
    report = run(short(**inputs, keep=["1.0", "encoder_self=0.5"], bench=False), out)
    kept = {v.name: sum(map(len, v.kept.values())) for v in report.variants}
    assert kept == {"keep-1.0": 12, "keep-encoder_self-0.5": 6}
    same = report.variants[0]
    assert all(c.difference == 0 and c.p_value == 1 for c in same.comparisons)
    for name in kept:
        _check_manifest(out / name)
        own = load_report(out / name / "report.json")
        assert [v.name for v in own.variants] == [name]
        assert compressor.load(out / name) is not None
        assert Classifier(out / name).labels == [f"LABEL_{i}" for i in range(5)]
    assert len(load_report(out / "report.json").variants) == 2


@pytest.mark.parametrize("stop_at", ["scoring", "measuring"])
def test_a_stopped_run_goes_on_and_ends_the_same(inputs, finished, tmp_path, stop_at):
    with pytest.raises(KeyboardInterrupt):
        run(short(**inputs), tmp_path / "stopped", progress=Progress(stop_at))
    progress = Progress()
    run(short(**inputs), tmp_path / "stopped", progress=progress)
    assert any("done before" in message for message in progress.messages)
    assert hashes(tmp_path / "stopped") == hashes(finished)


def test_the_artifacts_recipe_makes_the_same_artifact_again(finished, tmp_path):
    run(recipe(finished / "recipe.yaml", bench=False), tmp_path / "second")
    first, second = hashes(finished), hashes(tmp_path / "second")
    del first["recipe.yaml"], second["recipe.yaml"]  # one benched, the other did not
    assert first == second


def without_directories(report: Report) -> dict:
    """All facts of a report but where its models lie: `finished` is a copy."""
    facts = report.model_dump()
    for model in (facts["dense"], *facts["variants"]):
        del model["directory"]
    return facts


def test_a_finished_run_repeats_nothing(inputs, finished):
    progress = Progress()
    before = load_report(finished / "report.json")
    again = run(short(**inputs), finished, progress=progress)
    assert without_directories(again) == without_directories(before)
    assert load_report(finished / "report.json") == again
    assert progress.messages
    assert all("done before" in message for message in progress.messages)


def test_a_run_that_was_moved_reports_where_it_lies_now(inputs, finished):
    report = run(short(**inputs), finished)
    assert report.variants[0].directory == finished.as_posix()
    assert report.dense.directory == (finished / ".compress" / "dense").as_posix()


def test_steps_score_again_before_each(classifier, tmp_path):
    options = {"keep": ["0.5", "0.75"], "steps": 3, "bench": False, "recover": "reconstruct"}
    wanted = recipe_for(classifier, tmp_path, **options)
    report = run(wanted, tmp_path / "out")
    assert sum(map(len, report.variants[0].kept.values())) == 6
    scoring = request(ScoreRequest, model=str(classifier), calibration=wanted.data.calibration)
    once = score_checkpoint(scoring)
    for variant in report.variants:
        assert variant.scoring.cost["forward_passes"] == 3 * once.cost["forward_passes"]
        directory = Path(variant.directory)
        scores = json.loads((directory / "units.json").read_text(encoding="utf-8"))["scores"]
        assert variant.scoring.values == scores
        assert load_report(directory / "report.json").scoring == variant.scoring
    first, second = (variant.scoring.values for variant in report.variants)
    assert first != second
    assert "re-solved" in report.variants[0].recovery


@pytest.mark.parametrize(
    ("options", "error", "problem", "detail"),
    [
        ({"keep": []}, UsageError, "option-missing", "--keep"),
        ({"keep": ["0.5", "0.5"]}, UsageError, "budget-twice", "keep 0.5"),
        ({"keep": ["2"]}, UsageError, "floors-too-high", "need 3"),
        ({"keep": ["99"]}, UsageError, "budget-too-large", "12"),
        ({"keep": ["cross=0.5"]}, UsageError, "kind-unknown", "'cross'"),
        ({"method": "tailor"}, UsageError, "name-unknown", "hard-concrete, subset"),
        ({"task": "translation"}, UsageError, "task-of-another-model", "translation"),
        ({"calibration": None}, UsageError, "calibration-missing", "--calibration"),
        (
            {"test": None, "max_drop": ["accuracy=1"]},
            UsageError, "test-rows-missing", "--max-drop accuracy=1",
        ),
        ({"min_speedup": ["1.1@32"]}, UsageError, "batch-size-not-measured", "32"),
        (
            {"bench": False, "min_speedup": ["1.1"]},
            UsageError, "options-exclude-each-other", "--no-bench",
        ),
        ({"max_drop": ["bleu=1"]}, UsageError, "metric-of-another-task", "accuracy"),
        ({"model": "/nothing/there"}, InputError, "checkpoint-missing", "/nothing/there"),
    ],
)  # fmt: skip
def test_refusals_come_before_anything_is_written(
    inputs, tmp_path, options, error, problem, detail
):
    with raises(error, problem) as caught:
        run(short(**inputs | options), tmp_path / "out")
    assert detail in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_calibrating_on_test_rows_is_warned_of(inputs, tmp_path):
    def warnings(name: str, **options: object) -> list[str]:
        progress = Progress("exporting the dense model")
        with pytest.raises(KeyboardInterrupt):
            run(short(**inputs | options), tmp_path / name, progress=progress)
        return [message for message in progress.messages if message.startswith("warning: ")]

    (warning,) = warnings("both", calibration=inputs["test"], calibration_rows=20)
    assert "20 of 24 test rows are calibration rows too" in warning
    assert warnings("apart") == []


def test_what_is_not_ours_is_never_touched(inputs, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine", encoding="utf-8")
    with raises(InputError, "output-not-empty"):
        run(short(**inputs), out)
    assert [p.name for p in out.iterdir()] == ["thesis.txt"]


def test_another_recipe_does_not_overwrite_a_run(inputs, finished, tmp_path):
    before = hashes(finished)
    with raises(UsageError, "output-of-another-run") as caught:
        run(short(**inputs, keep=["0.7"]), finished)
    assert "keep=['0.5'], now it is ['0.7']" in str(caught.value)
    other = str(toy.labels_file(tmp_path / "test.tsv", seed=5))
    with raises(UsageError, "output-of-another-run") as caught:
        run(short(**inputs | {"test": other}), finished)
    assert "test=" in str(caught.value)
    assert hashes(finished) == before


def test_changed_weights_of_the_same_name_are_another_run(inputs, finished, tmp_path):
    model = shutil.copytree(inputs["model"], tmp_path / "bert")
    wanted = short(**inputs | {"model": str(model)}, bench=False, recover="none")
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(wanted, out, progress=Progress("exporting the dense model"))
    toy.classifier(model, "roberta")
    with raises(UsageError, "output-of-another-run") as caught:
        run(wanted, out)
    assert "weights=" in str(caught.value)


def test_compressed_checkpoints_are_not_compressed_again(inputs, finished, tmp_path):
    with raises(InputError, "checkpoint-already-pruned"):
        run(short(**inputs | {"model": str(finished)}), tmp_path / "again")


def test_the_gate_is_judged_on_the_runs_own_numbers(inputs, finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    report = run(short(**inputs, max_drop=["accuracy=0"], min_speedup=["100@2"]), out)
    drop = report.variants[0].comparisons[0]
    assert drop.metric == "accuracy"
    lost, won = drop.discordant
    assert won - lost == round(drop.difference / 100 * report.test.rows)
    low, high = (sign * score_bound(*pair, report.test.rows, 0.025)
                 for sign, pair in ((-1, (lost, won)), (1, (won, lost))))  # fmt: skip
    verdict = "passed" if low >= 0 else "failed" if high < 0 else "inconclusive"
    assert {outcome.rule: outcome.verdict for outcome in report.gate} == {
        "max-drop accuracy=0": verdict,
        "min-speedup 100@2": "failed",
    }


def test_recipe_file_of_a_run_is_complete(finished):
    values = yaml.safe_load((finished / "recipe.yaml").read_text(encoding="utf-8"))
    assert set(values) == set(Recipe.model_fields)


def test_quality_is_what_an_independent_count_says(inputs, finished):
    report = load_report(finished / "report.json")
    rows = Path(inputs["test"]).read_text(encoding="utf-8").splitlines()[1:]
    texts, gold = zip(*(row.split("\t") for row in rows), strict=True)
    loaded = open_checkpoint(str(finished))
    batch = loaded.tokenizer(list(texts), return_tensors="pt", padding=True)
    with torch.no_grad():
        best = loaded.model(**batch).logits.argmax(-1).numpy()
    right = np.mean([f"LABEL_{i}" == label for i, label in zip(best, gold, strict=True)])
    assert report.variants[0].quality.metrics["accuracy"] == pytest.approx(100 * right)


LOST = {
    "weights and graphs": ["model.safetensors", "onnx"],
    "the dense model's graph": [".compress/dense/onnx/model.onnx"],
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_a_finished_run_makes_lost_files_again(inputs, finished, tmp_path, lost):
    out = shutil.copytree(finished, tmp_path / "out")
    before = hashes(out)
    for path in (out / name for name in lost):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    progress = Progress()
    run(short(**inputs), out, progress=progress)
    assert sum("done again" in message for message in progress.messages) == 1
    assert any(m.startswith("measuring throughput") and m.endswith("…") for m in progress.messages)
    assert hashes(out) == before
    assert all((out / name).exists() for name in lost)
    _check_manifest(out)
    settled = Progress()
    run(short(**inputs), out, progress=settled)
    assert all("done before" in message for message in settled.messages)


def overwrite_half(path: Path) -> None:
    """Zeros over the second half; the file keeps its size."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def quality(report: Report) -> list[dict]:
    """What a report says of its models, but for times and where they lie."""
    models = without_directories(report)
    return [models["dense"], *models["variants"]]


@pytest.mark.parametrize(
    ("damaged", "kept"),
    [
        ("model.safetensors", "evaluating dense "),
        ("onnx/model.onnx", "evaluating dense "),
        ("units.json", "evaluating dense "),
        ("onnx/graphs.json", "evaluating dense "),
        (".compress/dense/onnx/model.onnx", "evaluating keep-0.5 "),
    ],
)
def test_a_file_that_was_changed_is_made_again(inputs, finished, tmp_path, damaged, kept):
    """With what was measured on it, and without what does not depend on it."""
    out = shutil.copytree(finished, tmp_path / "out")
    before, digest = load_report(out / "report.json"), sha256(out / damaged)
    overwrite_half(out / damaged)
    progress = Progress()
    after = run(short(**inputs), out, progress=progress)
    (message,) = [m for m in progress.messages if "again" in m]
    assert str(out / damaged) in message
    assert sha256(out / damaged) == digest
    assert hashes(out) == hashes(finished)
    assert quality(after) == quality(before)
    assert any(m.startswith(kept) and "done before" in m for m in progress.messages)
    _check_manifest(out)


@pytest.mark.parametrize("name", ["README.md", "report.md", "recipe.yaml", "manifest.json"])
def test_files_of_the_user_are_not_replaced(inputs, finished, tmp_path, name):
    out = shutil.copytree(finished, tmp_path / "out")
    (out / name).write_text("my notes", encoding="utf-8")
    before = hashes(out)
    progress = Progress()
    with raises(InputError, "output-not-ours") as caught:
        run(short(**inputs), out, progress=progress)
    assert str(out / name) in str(caught.value)
    assert progress.messages == []  # before anything was computed
    assert (out / name).read_text(encoding="utf-8") == "my notes"
    assert hashes(out) == before
    (out / name).unlink()
    run(short(**inputs), out)
    assert (out / name).read_bytes() != b"my notes"
    _check_manifest(out)


def test_a_file_that_changes_while_the_run_goes_on_gets_no_new_hash(inputs, finished, tmp_path):
    class Harm(Progress):
        def message(self, text: str) -> None:
            super().message(text)
            if "comparing" in text:  # after the build was found intact
                overwrite_half(out / "model.safetensors")

    out = shutil.copytree(finished, tmp_path / "out")
    run(short(**inputs), out, progress=Harm())
    with raises(InputError, "file-changed"):
        compressor.load(out)
    run(short(**inputs), out)
    assert compressor.load(out) is not None


def test_files_of_others_are_not_in_the_manifest(inputs, finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    run(short(**inputs), out)
    listed = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["files"]
    assert "notes.txt" not in listed


DAMAGE = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "garbage": lambda text: "\x00\xff garbage",
    "a list": lambda text: "[1, 2]",
    "a number": lambda text: "7",
    "another version": lambda text: json.dumps(json.loads(text) | {"version": "9.9"}),
    "a result of another type": lambda text: json.dumps(json.loads(text) | {"result": [[7]]}),
    "no result": lambda text: json.dumps({"stage": "x", "keys": {}}),
}
RECORDS = (
    "answers-dense-fp32", "answers-keep-0.5-fp32", "build-keep-0.5", "choice-keep-0.5",
    "comparison-keep-0.5-fp32-dense", "dense", "scores", "started", "throughput",
)  # fmt: skip


def test_these_are_the_records_of_a_run(finished):
    found = {path.stem for path in (finished / ".compress").glob("*.json")}
    assert found == {*RECORDS, "run"}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("build-keep-0.5", "cut"),
        ("choice-keep-0.5", "a result of another type"),
        ("scores", "empty"),
        ("run", "a list"),
        *(pytest.param(name, "cut", marks=pytest.mark.attack) for name in (*RECORDS, "run")),
        *(pytest.param("started", damage, marks=pytest.mark.attack) for damage in DAMAGE),
    ],
)
def test_a_damaged_record_is_made_again(inputs, finished, tmp_path, name, damage):
    out = shutil.copytree(finished, tmp_path / "out")
    before = load_report(out / "report.json")
    record = out / ".compress" / f"{name}.json"
    record.write_text(DAMAGE[damage](record.read_text(encoding="utf-8")), encoding="utf-8")
    progress = Progress()
    after = run(short(**inputs), out, progress=progress)
    told = [message for message in progress.messages if "again" in message]
    if name == "scores":  # which nobody looks at where heads were chosen by them
        assert told == []
    else:
        assert len(told) == 1
        assert str(record) in told[0]
    assert hashes(out) == hashes(finished)
    assert quality(after) == quality(before)
    _check_manifest(out)
