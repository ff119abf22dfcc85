"""Finished runs that tests of several files share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compressor.pipeline.run import run
from tests.helpers import toy
from tests.helpers.command_line import compress
from tests.helpers.exports import no_exports
from tests.helpers.runs import short
from tests.pipeline.task_runs import RUNS


@pytest.fixture(scope="module")
def finished(inputs, once, tmp_path_factory) -> Path:
    """The output of that run in two precisions, which tests may run again, but must not change."""
    recipe = short(**inputs, precision=["fp32,int8"])
    made = once("pipeline-finished", lambda out: run(recipe, out))
    return shutil.copytree(made, tmp_path_factory.mktemp("finished") / "out")


@pytest.fixture(scope="session")
def translated(checkpoints, once) -> Path:
    """In `out` what the shell makes of `marian` with `rows.tsv`, in two engines: layers go, too."""

    def make(folder: Path) -> None:
        rows = toy.pairs_file(folder / "rows.tsv")
        done = compress(
            "run", "--model", checkpoints["marian"], "--calibration", rows, "--test", rows,
            "--output", folder / "out", "--macs", "0.5", "--drop-layers", "decoder=1,encoder=1",
            "--multiple", "8", "--recover", "reconstruct", "--engines", "onnxruntime,ctranslate2",
            "--batch-size", "4,8", "--bench-seconds", "0.02", "--threads", "1",
            "--resamples", "100", "--device", "cpu",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    return once("pipeline-translated", make)


@pytest.fixture(scope="session")
def task_run(once) -> Callable[[str], Path]:
    """By a name in `task_runs.RUNS`: `model`, data, and in `out` what a run made of them."""
    return lambda name: once(f"pipeline-{name}", RUNS[name].make)


@pytest.fixture
def no_graphs() -> Iterator[None]:
    """For runs of which only the units and the weights are looked at, without test rows."""
    with no_exports():
        yield
