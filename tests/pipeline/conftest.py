"""Dense checkpoints, rows and a finished run that tests of several files share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compressor.pipeline.run import run
from tests.helpers import toy
from tests.helpers.runs import recipe_for, short


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    """Three layers of four heads each."""
    return toy.classifier(tmp_path_factory.mktemp("bert") / "dense")


@pytest.fixture(scope="module")
def short_classifier(classifier, tmp_path_factory) -> Path:
    """The first layers of `classifier`."""
    return toy.first_layers(classifier, tmp_path_factory.mktemp("bert") / "short")


@pytest.fixture(scope="module")
def inputs(once) -> dict[str, str]:
    """The files that most tests share, as options."""
    made = once(
        "pipeline-inputs", lambda folder: recipe_for(toy.classifier(folder / "bert"), folder)
    )
    return {
        "model": str(made / "bert"),
        "calibration": str(made / "calibration.tsv"),
        "test": str(made / "test.tsv"),
    }


@pytest.fixture(scope="module")
def finished(inputs, once, tmp_path_factory) -> Path:
    """The output of a short run of them; tests may run it again, but must not change it."""
    own = tmp_path_factory.mktemp("finished") / "out"
    made = once("pipeline-finished", lambda out: run(short(**inputs), out))
    return shutil.copytree(made, own)
