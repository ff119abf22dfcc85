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
from tests.helpers.measured import finished_steps
from tests.helpers.recipes import recipe
from tests.helpers.runs import Progress, check_manifest, hashes, sha256, short

pytestmark = pytest.mark.slow


def test_a_stopped_run_goes_on_and_ends_the_same(inputs, finished, tmp_path):
    for stop_at in ("scoring", "removing", "measuring"):
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
    """They are what they were, so that nothing is measured again."""
    out = shutil.copytree(finished, tmp_path / "out")
    before = hashes(out)
    for path in (out / name for name in lost):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    progress = Progress()
    run(short(**inputs), out, progress=progress)
    assert sum("done again" in message for message in progress.messages) == 1
    assert sum(message.endswith("…") for message in progress.messages) == 1
    assert hashes(out) == before
    assert all((out / name).exists() for name in lost)
    check_manifest(out)


def overwrite_half(path: Path) -> None:
    """Zeros over the second half; the file keeps its size."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def quality(report: Report) -> list[dict]:
    """What a report says of its models, but for times and where they lie."""
    models = without_directories(report)
    return [models["dense"], *models["variants"]]


@pytest.mark.parametrize("damaged", ["model.safetensors", "onnx/graphs.json"])
def test_a_file_that_was_changed_is_made_again(inputs, finished, tmp_path, damaged):
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


DAMAGE = {
    "cut": lambda text: text[: len(text) // 2],
    "garbage": lambda text: "\x00\xff garbage",
    "a list": lambda text: "[1, 2]",
    "a result of another type": lambda text: json.dumps(json.loads(text) | {"result": [[7]]}),
    "no result": lambda text: json.dumps({"files": {}}),
}
STEPS = {
    "answer": 2, "build": 1, "choose": 1, "compare_rows": 1, "export_dense": 1, "score": 1,
    "start": 1, "time_models": 1,
}  # fmt: skip


def test_these_are_the_steps_of_a_run(finished):
    assert finished_steps(finished) == STEPS


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("build", "cut"),
        ("choose", "a result of another type"),
        ("score", "no result"),
        ("run", "a list"),
        *(pytest.param(name, "cut", marks=pytest.mark.attack) for name in (*STEPS, "run")),
        *(pytest.param("start", damage, marks=pytest.mark.attack) for damage in DAMAGE),
    ],
)
def test_a_damaged_record_is_made_again(inputs, finished, tmp_path, name, damage):
    out = shutil.copytree(finished, tmp_path / "out")
    before = load_report(out / "report.json")
    record = sorted((out / ".compress").glob(f"{name}[-.]*json"))[0]
    record.write_text(DAMAGE[damage](record.read_text(encoding="utf-8")), encoding="utf-8")
    progress = Progress()
    after = run(short(**inputs), out, progress=progress)
    (told,) = [message for message in progress.messages if "again" in message]
    assert str(record) in told
    assert hashes(out) == hashes(finished)
    assert quality(after) == quality(before)
    check_manifest(out)
