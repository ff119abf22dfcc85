"""A run that was stopped, finished, moved, damaged or told something else, run again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import compressor
from compressor.errors import InputError, UsageError
from compressor.pipeline.run import run
from compressor.report.schema import Report, load_report
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.recipes import recipe
from tests.helpers.runs import Progress, check_manifest, hashes, sha256, short

pytestmark = pytest.mark.slow


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


def test_a_finished_run_repeats_nothing_and_lies_where_it_says(inputs, finished):
    """It was moved: `finished` is a copy."""
    progress = Progress()
    before = load_report(finished / "report.json")
    again = run(short(**inputs), finished, progress=progress)
    assert without_directories(again) == without_directories(before)
    assert load_report(finished / "report.json") == again
    assert progress.messages
    assert all("done before" in message for message in progress.messages)
    assert again.variants[0].directory == "."
    assert again.dense.directory == ".compress/dense"


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
    check_manifest(out)
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
    check_manifest(out)


def test_files_of_the_user_are_not_replaced(inputs, finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    files = [out / name for name in ("README.md", "report.md", "recipe.yaml", "manifest.json")]
    for path in files:
        ours = path.read_bytes()
        path.write_text("my notes", encoding="utf-8")
        before = hashes(out)
        progress = Progress()
        with raises(InputError, "output-not-ours") as caught:
            run(short(**inputs), out, progress=progress)
        assert str(path) in str(caught.value)
        assert progress.messages == []  # before anything was computed
        assert path.read_text(encoding="utf-8") == "my notes"
        assert hashes(out) == before
        path.write_bytes(ours)
    for path in files:
        path.unlink()
    run(short(**inputs), out)
    assert all(path.exists() for path in files)
    check_manifest(out)


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
    "answers-dense-fp32-onnxruntime", "answers-keep-0.5-fp32-onnxruntime", "build-keep-0.5",
    "choice-keep-0.5", "comparison-keep-0.5-fp32-onnxruntime-dense", "dense", "scores", "started",
    "throughput",
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
    check_manifest(out)
