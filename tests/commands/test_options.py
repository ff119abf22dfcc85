"""Options without an effect are errors that say what they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.commands import run
from compressor.files import write_json
from tests.helpers import toy
from tests.helpers.scores import sample


@pytest.fixture(scope="module")
def model(once) -> Path:
    return once("outputs-model", toy.classifier)


def score(model: Path, output: Path, *options: str) -> int:
    return run(["score", "-m", str(model), "--method", "magnitude", "-o", str(output), *options])


def test_score_refuses_options_that_no_method_takes(model, tmp_path, capsys):
    output = tmp_path / "s.json"
    assert score(model, output, "--per", "example") == 2
    assert "--method taylor or relevance, not for magnitude" in capsys.readouterr().err
    # An option may be for a method that is compared with, which has no rows here.
    assert score(model, output, "--per", "example", "--compare", "taylor") == 2
    assert "--method taylor needs --calibration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--calibration", "none.tsv"], "--recover reconstruct"),
        (["--learning-rate", "3"], "--recover distill"),
    ],
)
def test_prune_refuses_options_of_a_repair_that_is_not_done(model, tmp_path, options, hint, capsys):
    scores = tmp_path / "scores.json"
    write_json(scores, sample(0, "taylor").to_json())
    output = ["-o", str(tmp_path / "out"), "--keep", "0.5"]
    assert run(["prune", "-m", str(model), "--scores", str(scores), *output, *options]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-5", "nan"])
def test_no_time_to_measure_is_refused(seconds, capsys):
    assert run(["bench", "x", "--test", "x.tsv", "--bench-seconds", seconds]) == 2
    assert "seconds above 0" in capsys.readouterr().err
