"""A run that was stopped, finished, moved, damaged or given other options, run again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import compressor
from compressor.errors import InputError, UsageError
from compressor.options.recipe import Recipe
from compressor.pipeline.run import run
from compressor.report.schema import Report, load_report
from compressor.runtime import Classifier
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.runs import Progress, check_manifest, finished_steps, hashes, short
from tests.helpers.runs import recipe as read_recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recipe(inputs) -> Recipe:
    """That of `finished`."""
    return short(**inputs, precision=["fp32,int8"])


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    """A copy of the finished run that a test may change."""
    return shutil.copytree(finished, tmp_path / "out")


def test_a_stopped_run_goes_on_and_ends_the_same(recipe, finished, tmp_path):
    for stop_at in ("scoring", "removing", "measuring"):
        with pytest.raises(KeyboardInterrupt):
            run(recipe, tmp_path / "stopped", progress=Progress(stop_at))
    progress = Progress()
    run(recipe, tmp_path / "stopped", progress=progress)
    assert any("done before" in message for message in progress.messages)
    assert models(tmp_path / "stopped") == models(finished)


def models(directory: Path) -> dict[str, str]:
    """Hashes of what is served, but for the default precision, which timings decide."""
    return {name: x for name, x in hashes(directory).items() if name != "onnx/graphs.json"}


def test_the_artifacts_recipe_makes_the_same_artifact_again(finished, tmp_path):
    run(read_recipe(finished / "recipe.yaml", bench=False), tmp_path / "second")
    first, second = models(finished), models(tmp_path / "second")
    del first["recipe.yaml"], second["recipe.yaml"]  # one benched, the other did not
    assert first == second


def facts_of(report: Report) -> dict:
    """All facts of a report but where its models lie: `finished` is a copy."""
    facts = report.model_dump()
    for model in (facts["dense"], *facts["variants"]):
        del model["directory"]
    return facts


def test_a_finished_run_repeats_nothing_and_lies_where_it_says(recipe, finished):
    """It was moved: `finished` is a copy."""
    progress = Progress()
    before = load_report(finished / "report.json")
    again = run(recipe, finished, progress=progress)
    assert facts_of(again) == facts_of(before)
    assert load_report(finished / "report.json") == again
    *read, done = progress.messages[:3]  # what was read of both files comes first
    assert all("rows; text 'text', label 'label'" in message for message in read)
    assert "done before" in done
    assert all("done before" in message for message in progress.messages[2:])
    assert (again.variants[1].directory, again.dense.directory) == (".", ".compress/dense")


def test_another_recipe_does_not_overwrite_a_run(inputs, finished, tmp_path):
    before = hashes(finished)
    precision = ["fp32,int8"]
    other = str(toy.labels_file(tmp_path / "test.tsv", seed=5))
    for options in ({"keep": ["0.7"]}, {"test": other}):
        with raises(UsageError, "output-of-another-run"):
            run(short(**inputs | {"precision": precision} | options), finished)
    assert hashes(finished) == before


def overwrite_half(path: Path) -> None:
    """Zeros over the second half; the file keeps its size."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("onnx", remove), (".compress/dense/onnx/model.onnx", remove),
        ("model.safetensors", overwrite_half), ("onnx/model.int8.onnx_data", overwrite_half),
    ],
)  # fmt: skip
def test_lost_and_damaged_files_are_made_again(recipe, finished, copy, name, harm):
    """They are what they were, so that nothing is measured again."""
    harm(copy / name)
    progress = Progress()
    after = run(recipe, copy, progress=progress)
    assert any("again" in message for message in progress.messages)
    assert all(("measuring" not in x and "evaluating" not in x) or x.endswith("done before")
               for x in progress.messages)  # fmt: skip
    assert hashes(copy) == hashes(finished)
    assert facts_of(after) == facts_of(load_report(finished / "report.json"))
    assert Classifier(copy).precision == Classifier(finished).precision
    check_manifest(copy)


def test_files_of_the_user_are_not_replaced(recipe, copy):
    for name in ("README.md", "recipe.yaml", "manifest.json"):
        path, progress = copy / name, Progress()
        path.write_text("my notes", encoding="utf-8")
        with raises(InputError, "output-not-ours"):
            run(recipe, copy, progress=progress)
        assert all("rows; text" in x for x in progress.messages)  # before anything was computed
        assert path.read_text(encoding="utf-8") == "my notes"
        path.unlink()
    run(recipe, copy)
    check_manifest(copy)


def test_a_file_that_changes_while_the_run_goes_on_gets_no_new_hash(recipe, copy):
    class Harm(Progress):
        def message(self, text: str) -> None:
            super().message(text)
            if "comparing" in text:  # after the build was checked
                overwrite_half(copy / "model.safetensors")

    run(recipe, copy, progress=Harm())
    with raises(InputError, "file-changed"):
        compressor.load(copy)


DAMAGE: dict[str, Callable[[str], str]] = {
    "cut": lambda text: text[: len(text) // 2],
    "a list": lambda text: "[1, 2]",
    "a result of another type": lambda text: json.dumps(json.loads(text) | {"result": [[7]]}),
}
STEPS = {
    "answer", "check_precision", "choose", "compare_rows", "export_dense", "export_precision",
    "export_saved", "make_default", "prune_units", "recover_units", "run_metadata", "save_model",
    "score", "time_models",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("export_saved", "cut"),
        ("recover_units", "cut"),
        ("choose", "a result of another type"),
        ("run", "a list"),
    ],
)
def test_a_damaged_record_is_made_again(recipe, finished, copy, name, damage):
    assert finished_steps(finished).keys() == STEPS
    before = load_report(copy / "report.json")
    record = sorted((copy / ".compress").glob(f"{name}[-.]*json"))[0]
    record.write_text(DAMAGE[damage](record.read_text(encoding="utf-8")), encoding="utf-8")
    progress = Progress()
    after = run(recipe, copy, progress=progress)
    assert any(str(record) in message and "again" in message for message in progress.messages)
    assert models(copy) == models(finished)
    measured = [[(v.name, v.kept, v.quality, v.comparisons, v.checks) for v in report.variants]
                for report in (before, after)]  # fmt: skip
    assert measured[0] == measured[1]
    check_manifest(copy)
