"""The whole context on toy checkpoints: artifacts, resuming, reproducibility, refusals."""

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
from compressor.model.checkpoint import open_checkpoint
from compressor.pipeline.context import prepare
from compressor.pipeline.recipe import Recipe, build_recipe
from compressor.pipeline.run import run
from compressor.pipeline.single_steps import score_checkpoint
from compressor.report.schema import Report, load_report
from compressor.runtime import Classifier, Translator
from tests.helpers import toy
from tests.helpers.runs import SHORT, Progress, hashes, recipe_for

pytestmark = pytest.mark.usefixtures("shared_exports")


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Path:
    return toy.marian_with_pieces(tmp_path_factory.mktemp("marian") / "dense")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    return toy.classifier(tmp_path_factory.mktemp("bert") / "dense")


@pytest.fixture(scope="module")
def inputs(once) -> Recipe:
    """The recipe that most tests share."""
    made = once(
        "pipeline-inputs", lambda folder: recipe_for(toy.classifier(folder / "bert"), folder)
    )
    return Recipe(
        model=str(made / "bert"),
        calibration=str(made / "calibration.tsv"),
        test=str(made / "test.tsv"),
        **SHORT,
    )


@pytest.fixture(scope="module")
def finished(inputs, once, tmp_path_factory) -> Path:
    """The output of that recipe; tests may run it again, but must not change it."""
    own = tmp_path_factory.mktemp("finished") / "out"
    return shutil.copytree(once("pipeline-finished", lambda out: run(inputs, out)), own)


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
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == facts["sha256"]
    needed = {"config.json", "heads.json", "recipe.yaml", "report.html", "README.md"}
    assert needed <= on_disk


def test_several_budgets_give_several_artifacts(inputs, tmp_path):
    out = tmp_path / "out"
    recipe = inputs.model_copy(update={"keep": ["1.0", "encoder_self=0.5"], "bench": False})
    report = run(recipe, out)
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
        run(inputs, tmp_path / "stopped", progress=Progress(stop_at))
    progress = Progress()
    run(inputs, tmp_path / "stopped", progress=progress)
    assert any("done before" in message for message in progress.messages)
    assert hashes(tmp_path / "stopped") == hashes(finished)


def test_the_artifacts_recipe_makes_the_same_artifact_again(finished, tmp_path):
    run(build_recipe({"bench": False}, finished / "recipe.yaml"), tmp_path / "second")
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
    again = run(inputs, finished, progress=progress)
    assert without_directories(again) == without_directories(before)
    assert load_report(finished / "report.json") == again
    assert progress.messages
    assert all("done before" in message for message in progress.messages)


def test_steps_score_again_before_each(classifier, tmp_path):
    options = {"keep": ["0.5", "0.75"], "steps": 3, "bench": False, "recover": "reconstruct"}
    recipe = recipe_for(classifier, tmp_path, **options)
    report = run(recipe, tmp_path / "out")
    assert sum(map(len, report.variants[0].kept.values())) == 6
    once = score_checkpoint(recipe)
    for variant in report.variants:
        assert variant.scoring.cost["forward_passes"] == 3 * once.cost["forward_passes"]
        directory = Path(variant.directory)
        scores = json.loads((directory / "heads.json").read_text(encoding="utf-8"))["scores"]
        assert variant.scoring.values == scores
        assert load_report(directory / "report.json").scoring == variant.scoring
    first, second = (variant.scoring.values for variant in report.variants)
    assert first != second
    assert "re-solved" in report.variants[0].recovery


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"keep": []}, UsageError, "say how many heads"),
        ({"keep": ["0.5", "0.5"]}, UsageError, "asked for twice"),
        ({"keep": ["2"]}, UsageError, "floors"),
        ({"keep": ["99"]}, UsageError, "only 12 heads"),
        ({"keep": ["cross=0.5"]}, UsageError, "no attention 'cross'"),
        ({"method": "tailor"}, UsageError, "no method 'tailor'; .* hard-concrete, subset"),
        ({"task": "translation"}, UsageError, "does not fit"),
        ({"calibration": None}, UsageError, "needs --calibration"),
        ({"test": None, "max_drop": ["accuracy=1"]}, UsageError, "needs --test"),
        ({"min_speedup": ["1.1@32"]}, UsageError, "batch size 32 is not measured"),
        ({"bench": False, "min_speedup": ["1.1"]}, UsageError, "drop --no-bench"),
        ({"model": "/nothing/there"}, InputError, "no directory"),
    ],
)
def test_refusals_come_before_anything_is_written(inputs, tmp_path, options, error, message):
    with pytest.raises(error, match=message) as caught:
        run(inputs.model_copy(update=options), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_calibrating_on_test_rows_is_warned_of(inputs, tmp_path):
    progress = Progress()
    both = inputs.model_copy(update={"calibration": inputs.test, "calibration_rows": 20})
    assert prepare(both, tmp_path / "both", progress).shared_rows == 20
    (warning,) = [message for message in progress.messages if message.startswith("warning: ")]
    assert "20 of 24 test rows are calibration rows too" in warning
    progress = Progress()
    assert prepare(inputs, tmp_path / "apart", progress).shared_rows == 0
    assert not any("warning" in message for message in progress.messages)


def test_what_is_not_ours_is_never_touched(inputs, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="is not empty and holds no run; choose another"):
        run(inputs, out)
    assert [p.name for p in out.iterdir()] == ["thesis.txt"]


def test_another_recipe_does_not_overwrite_a_run(inputs, finished, tmp_path):
    before = hashes(finished)
    with pytest.raises(UsageError, match=r"holds a run with keep=\['0.5'\], now it is \['0.7'\]"):
        run(inputs.model_copy(update={"keep": ["0.7"]}), finished)
    other = str(toy.labels_file(tmp_path / "test.tsv", seed=5))
    with pytest.raises(UsageError, match="holds a run with test="):
        run(inputs.model_copy(update={"test": other}), finished)
    assert hashes(finished) == before


def test_compressed_checkpoints_are_not_compressed_again(inputs, finished, tmp_path):
    with pytest.raises(InputError, match="has lost heads already"):
        run(inputs.model_copy(update={"model": str(finished)}), tmp_path / "again")


def test_the_gate_is_judged_on_the_runs_own_numbers(inputs, finished):
    rules = {"max_drop": ["accuracy=0"], "min_speedup": ["100@2"]}
    report = run(inputs.model_copy(update=rules), finished)
    drop = report.variants[0].comparisons[0]
    assert drop.metric == "accuracy"
    outcomes = {outcome.rule: outcome.met for outcome in report.gate}
    assert outcomes == {
        "max-drop accuracy=0": drop.difference >= 0,
        "min-speedup 100@2": False,
    }


def test_recipe_file_of_a_run_is_complete(finished):
    values = yaml.safe_load((finished / "recipe.yaml").read_text(encoding="utf-8"))
    assert set(values) == set(Recipe.model_fields)


def test_quality_is_what_an_independent_count_says(inputs, finished):
    report = load_report(finished / "report.json")
    rows = Path(inputs.test).read_text(encoding="utf-8").splitlines()[1:]
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
    run(inputs, out)
    before = hashes(out)
    for path in (out / name for name in lost):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    recipe, progress = inputs, Progress()
    run(recipe, out, progress=progress)
    assert sum("made again" in message for message in progress.messages) == 1
    assert any(m.startswith("measuring throughput") and m.endswith("…") for m in progress.messages)
    assert hashes(out) == before
    assert all((out / name).exists() for name in lost)
    _check_manifest(out)
    settled = Progress()
    run(recipe, out, progress=settled)
    assert all("done before" in message for message in settled.messages)
