"""Files of scores that are damaged, of a later version, or of another model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from compressor.commands import invoke
from compressor.errors import InputError, UsageError
from compressor.pipeline.run import prune_checkpoint, score_checkpoint
from compressor.pipeline.score import read_scores
from compressor.request.recipe import PruneRequest, ScoreRequest
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.recipes import request


@pytest.fixture(scope="session")
def scored(once) -> Path:
    """A classifier in `model`, and its scores by magnitude in `scores.json`."""

    def make(directory: Path) -> None:
        model = toy.classifier(directory / "model")
        words = ["score", "-m", model, "--method", "magnitude", "-o", directory / "scores.json"]
        assert invoke([*map(str, words), "--device", "cpu", "-q"]) == 0

    return once("scored", make)


def prune(scored: Path, scores: Path, output: Path, model: Path | None = None) -> int:
    words = ["prune", "-m", model or scored / "model", "--scores", scores, "-o", output]
    return invoke([*map(str, words), "--keep", "0.5", "--device", "cpu", "-q"])


def first(values: dict[str, Any], value: object) -> dict[str, Any]:
    name = next(iter(values["scores"]))
    rest = values["scores"][name][1:]
    return values | {"scores": values["scores"] | {name: [value, *rest]}}


CHANGES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    *(
        (lambda x, value=value: first(x, value), "scores-unreadable")
        for value in (float("nan"), None, "0.5", 10**400)
    ),
    (lambda x: x | {"schema": 99}, "scores-version"),
    (lambda x: {k: v for k, v in x.items() if k != "schema"}, "scores-version"),
    (lambda x: x | {"scores": 5}, "scores-unreadable"),
    (lambda x: x | {"scores": {"nowhere.0": [1.0]}}, "scores-unreadable"),
    (lambda x: [x], "scores-unreadable"),
]


@pytest.mark.parametrize(("change", "id"), CHANGES)
def test_a_file_that_holds_no_scores_is_told(change, id, scored, tmp_path):
    file = tmp_path / "scores.json"
    file.write_text(json.dumps(change(json.loads((scored / "scores.json").read_text()))))
    with raises(InputError, id) as caught:
        read_scores(file)
    assert str(file) in str(caught.value)
    assert prune(scored, file, tmp_path / "out") == 4
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100_000])
def test_damaged_scores_are_told(data, scored, tmp_path):
    (tmp_path / "scores.json").write_bytes(data)
    assert prune(scored, tmp_path / "scores.json", tmp_path / "out") == 4


def test_scores_prune_the_model_that_they_are_of_and_no_other(scored, tmp_path, capsys):
    assert prune(scored, scored / "scores.json", tmp_path / "out") == 0
    other = Path(shutil.copytree(scored / "model", tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    weights["classifier.bias"] += torch.tensor(0.001)
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    assert prune(scored, scored / "scores.json", tmp_path / "second", other) == 2
    assert "another model" in capsys.readouterr().err
    asked = request(PruneRequest, model=str(other), keep=["0.5"], device="cpu")
    for scores in (
        read_scores(scored / "scores.json"),
        score_checkpoint(
            request(ScoreRequest, model=str(scored / "model"), method="magnitude", device="cpu")
        ),
    ):
        with raises(UsageError, "scores-of-other-weights"):
            prune_checkpoint(asked, scores, tmp_path / "second")
    assert not (tmp_path / "second").exists()
