"""Options without an effect are errors that say what they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressor.errors import UsageError
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
