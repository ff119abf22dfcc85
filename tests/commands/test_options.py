"""Options without an effect are errors that say what they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.errors import UsageError
from compressor.files import write_json
from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.errors import raises
from tests.helpers.scores import sample


@pytest.fixture(scope="module")
def model(once) -> Path:
    return once("outputs-model", toy.classifier)


def score(model: Path, output: Path, *options: str) -> None:
    invoke("score", "-m", model, "--method", "magnitude", "-o", output, *options)


def test_score_rejects_options_that_no_compared_method_takes(model, tmp_path):
    output = tmp_path / "s.json"
    with raises(UsageError, "option-without-use") as caught:
        score(model, output, "--per", "example")
    assert "--method taylor" in str(caught.value)
    # An option may be for a method that is compared with, which has no rows here.
    with raises(UsageError, "calibration-missing"):
        score(model, output, "--per", "example", "--compare", "taylor")


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--calibration", "none.tsv"], "--recover reconstruct"),
        (["--learning-rate", "3"], "--recover distill"),
    ],
)
def test_prune_rejects_options_of_a_repair_that_is_not_chosen(model, tmp_path, options, hint):
    scores = tmp_path / "scores.json"
    write_json(scores, sample(0, "taylor").to_json())
    prune = ["prune", "-m", model, "--scores", scores, "-o", tmp_path / "out", "--keep", "0.5"]
    with raises(UsageError, "option-without-use") as caught:
        invoke(*prune, *options)
    assert hint in str(caught.value)


@pytest.mark.parametrize("seconds", ["0", "-5", "nan"])
def test_a_benchmark_needs_a_time_above_zero(seconds):
    with raises(UsageError, "option-invalid"):
        invoke("bench", "x", "--test", "x.tsv", "--bench-seconds", seconds)
