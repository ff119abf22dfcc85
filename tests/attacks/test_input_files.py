"""Reports, scores, recipes and rows that are damaged or made up: status 4 or 2, with the place."""

from __future__ import annotations

import copy
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from compressor.commands import invoke as status_of
from compressor.commands.stream_lines import Lines
from compressor.errors import InputError, UsageError
from compressor.options.requests import PruneRequest, ScoreRequest, make_recipe
from compressor.pipeline.single import prune_checkpoint, score_checkpoint
from compressor.report.rules import check
from compressor.report.schema import load_report, render_json
from compressor.report.scores_file import read_scores
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.report_samples import rules, translator_report
from tests.helpers.runs import request

REPORT: dict[str, Any] = json.loads(render_json(translator_report()))
QUALITY = ("variants", 0, "comparisons", 0, "difference")
SPEED = ("throughput", "rows", 4, "speedup")
GARBAGE = (b"", b"\xff\xfe", b"[" * 100_000)


def gate(report: Path, *words: str, drop: str = "bleu=100") -> int:
    return status_of(["gate", str(report), "--max-metric-drop", drop, *words])


def report_with(place: tuple[Any, ...], value: Any, path: Path) -> Path:
    """A file with another value at a place of the report."""
    report = copy.deepcopy(REPORT)
    part: Any = report
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    path.write_text(json.dumps(report), "utf-8")
    return path


@pytest.mark.parametrize(
    ("place", "value"), [(QUALITY, float("inf")), (QUALITY, True), (SPEED, "30")]
)
def test_infinities_texts_and_truth_values_are_no_numbers(place, value, tmp_path):
    file = report_with(place, value, tmp_path / "report.json")
    with raises(InputError, "report-invalid"):
        load_report(file)
    assert gate(file, "--min-speedup", "0.1") == 4


def test_the_gate_skips_no_model(tmp_path):
    """A model of which no precision is the default would be shipped unseen."""
    file = report_with(("variants", 0, "default"), False, tmp_path / "report.json")
    with raises(InputError, "report-without-default"):
        check(load_report(file), rules(["bleu=1"], ["0.5", "0.5@8"]))
    assert gate(file) == 4


@pytest.mark.parametrize("shipped", [False, True])
def test_the_gate_holds_the_precision_that_is_shipped(shipped, tmp_path):
    """A precision that lost is no matter where it runs only if asked for."""
    variants = copy.deepcopy(REPORT["variants"])
    worse = copy.deepcopy(variants[0])
    worse |= {"name": "heads-75-int8", "base": "heads-75", "precision": "int8", "default": shipped}
    worse["quality"]["metrics"]["bleu"] = worse["comparisons"][0]["pruned"] = 1.0
    worse["comparisons"][0] |= {"difference": 1 - 34.2134, "interval": [-35, -31]}
    variants[0]["default"] = not shipped
    file = report_with(("variants",), [*variants, worse], tmp_path / "report.json")
    assert gate(file, drop="bleu=10") == shipped


@pytest.fixture(scope="session")
def scored(once) -> Path:
    """A classifier in `model`, and its scores by magnitude in `scores.json`."""

    def make(directory: Path) -> None:
        model = toy.classifier(directory / "model")
        words = ["score", "-m", model, "--method", "magnitude", "-o", directory / "scores.json"]
        assert status_of([*map(str, words), "--device", "cpu", "-q"]) == 0

    return once("scored", make)


def prune(model: Path, scores: Path, output: Path) -> int:
    words = ["prune", "-m", model, "--scores", scores, "-o", output, "--keep", "0.5"]
    return status_of([*map(str, words), "--device", "cpu", "-q"])


def first(values: dict[str, Any], value: object) -> dict[str, Any]:
    name = next(iter(values["scores"]))
    rest = values["scores"][name][1:]
    return values | {"scores": values["scores"] | {name: [value, *rest]}}


@pytest.mark.parametrize(
    "change",
    [
        lambda x: first(x, float("nan")), lambda x: first(x, "0.5"), lambda x: [x],
        lambda x: x | {"schema": 99}, lambda x: x | {"scores": {"nowhere.0": [1.0]}},
        *((lambda x, data=data: data) for data in GARBAGE),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_scores_is_refused(change, scored, tmp_path):
    file = tmp_path / "scores.json"
    data = change(json.loads((scored / "scores.json").read_text()))
    file.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    with raises(InputError, "scores-unreadable") as caught:
        read_scores(file)
    assert str(file) in str(caught.value)
    assert prune(scored / "model", file, tmp_path / "out") == 4
    assert not (tmp_path / "out").exists()


def test_scores_prune_the_model_that_they_are_of_and_no_other(scored, tmp_path, capsys):
    model, scores = scored / "model", scored / "scores.json"
    assert prune(model, scores, tmp_path / "out") == 0
    other = Path(shutil.copytree(model, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    weights["classifier.bias"] += torch.tensor(0.001)
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    assert prune(other, scores, tmp_path / "second") == 2
    assert "another model" in capsys.readouterr().err
    asked = request(PruneRequest, model=str(other), keep=["0.5"], device="cpu")
    scoring = request(ScoreRequest, model=str(model), method="magnitude", device="cpu")
    for found in (read_scores(scores), score_checkpoint(scoring)):
        with raises(UsageError, "scores-of-other-weights"):
            prune_checkpoint(asked, found, tmp_path / "second")
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("text", "id"),
    [
        *((text * 100_000, "recipe-nested") for text in ("[", "- ")),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "recipe-not-yaml"),
        ("seed: !!python/object/apply:os.getcwd []", "recipe-not-yaml"),
        ('model: "a\\udcff"', "recipe-not-yaml"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(text, id, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(text, "utf-8")
    began = time.monotonic()
    with raises(UsageError, id) as caught:
        make_recipe(file, model="m", keep=["0.5"], test="t")
    assert time.monotonic() - began < 5
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "-m", "m", "--test", "t.tsv", "--keep", "0.5", "-o", "out", "-c", "PIPE"],
        ["gate", "PIPE", "--max-metric-drop", "bleu=1"],
        ["prune", "-m", "m", "--scores", "PIPE", "--keep", "0.5", "-o", "out"],
    ],
)
def test_a_pipe_without_a_writer_ends_with_status_4(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("compressor.storage.input_files.WRITER_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)
    os.mkfifo("PIPE")
    began = time.monotonic()
    assert status_of(words) == 4
    assert time.monotonic() - began < 20
    assert "pipe without a writer" in capsys.readouterr().err


def test_a_pipe_with_a_writer_is_read(tmp_path):
    pipe = tmp_path / "lines"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("one\ntwo\n", "utf-8"))
    writer.start()
    assert list(Lines([pipe])) == ["one", "two"]
    writer.join()
