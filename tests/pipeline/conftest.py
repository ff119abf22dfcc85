"""Dense checkpoints, rows and a finished run that tests of several files share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from compressor.pipeline.run import run
from tests.helpers import toy
from tests.helpers.command_line import compress
from tests.helpers.exports import no_exports
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


@pytest.fixture
def no_graphs() -> Iterator[None]:
    """For runs of which only the units and the weights are looked at, without test rows."""
    with no_exports():
        yield


@pytest.fixture(scope="session")
def shallow(once) -> Path:
    """A translator in `marian`, and in `out` what the shell makes of it: layers and units go."""

    def make(folder: Path) -> None:
        dense = toy.marian_with_pieces(folder / "marian")
        rows = toy.pairs_file(folder / "rows.tsv")
        done = compress(
            "run", "--model", dense, "--calibration", rows, "--test", rows,
            "--output", folder / "out", "--macs", "0.5", "--drop-layers", "decoder=1,encoder=1",
            "--multiple", "8", "--recover", "reconstruct+distill", "--distill-epochs", "1",
            "--batch-size", "2", "--bench-seconds", "0.05", "--threads", "1",
            "--resamples", "100", "--device", "cpu",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    return once("shallow-translator", make)
