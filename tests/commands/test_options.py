"""Options without an effect are errors that say what they belong to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compressor.errors import InputError, UsageError
from compressor.pipeline.scores_file import write_scores
from compressor.request.sections import ModelSection
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.scores import sample


@pytest.fixture(scope="module")
def model(once) -> Path:
    return once("outputs-model", toy.classifier)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--calibration", "none.tsv"], "--recover reconstruct"),
        (["--learning-rate", "3"], "--recover distill"),
    ],
)
def test_prune_refuses_options_of_a_repair_that_is_not_done(model, tmp_path, options, hint):
    scores = tmp_path / "scores.json"
    write_scores(scores, sample(0, "taylor"), ModelSection(path=str(model)))
    output = ["-o", tmp_path / "out", "--keep", "0.5"]
    with raises(UsageError, "option-without-use") as caught:
        invoke("prune", "-m", model, "--scores", scores, *output, *options)
    assert hint in str(caught.value)


@pytest.mark.parametrize("seconds", ["0", "-5", "nan"])
def test_no_time_to_measure_is_refused(seconds):
    with raises(UsageError, "option-invalid") as caught:
        invoke("bench", "x", "--test", "x.tsv", "--bench-seconds", seconds)
    assert "--bench-seconds" in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        "translate ODD",
        "classify x lines.txt ODD",
        "classify x -o ODD",
        "verify ODD",
        "inspect ODD",
        "export -m x -o ODD",
        "run -m x --test ODD -o out",
        "run -m x --calibration a.tsv --calibration ODD -o out",
        "run -c ODD -o out",
        "score -m x --calibration ODD -o scores.json",
        "prune -m x --scores ODD -o out",
        "study curve -m x -o ODD --calibration a.tsv --test a.tsv",
        "evaluate ODD --test a.tsv",
        "report ODD -o out",
        "gate ODD --min-speedup 1",
        "gate report.json --baseline ODD",
        "gate report.json --ci ODD",
        "gate report.json --junit ODD",
    ],
)
def test_names_that_are_not_utf8_are_refused_before_anything_is_opened(words):
    odd = os.fsdecode(b"a\xff/b")
    with raises(InputError, "argument-not-utf8") as caught:
        invoke(*words.replace("ODD", odd).split())
    assert r"a\xff/b is not UTF-8" in str(caught.value)
