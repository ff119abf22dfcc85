"""--jobs: artifacts of several budgets are made at the same time, and are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compressor.errors import EnvironmentProblem, InputError, UsageError
from compressor.pipeline import side_by_side
from compressor.pipeline.run import run
from compressor.request.recipe import Recipe
from compressor.request.resolve import resolve
from tests.helpers import toy
from tests.helpers.command_line import ROOT, compress
from tests.helpers.errors import raises
from tests.helpers.runs import Progress, hashes, recipe_for

NAMES = ["keep-0.5", "keep-0.75"]


@pytest.fixture(scope="module")
def classifier(once) -> Path:
    return once("jobs-bert", lambda path: toy.first_layers(toy.classifier(path / "whole"), path))


@pytest.fixture(autouse=True)
def _threads(monkeypatch) -> None:
    """Sums are the same with as many threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))


@pytest.fixture
def made(classifier, tmp_path) -> Recipe:
    return recipe_for(
        classifier, tmp_path, keep=["0.5", "0.75"], bench=False, precision=["fp32,int8"]
    )


@pytest.fixture
def started(monkeypatch) -> list[subprocess.Popen]:
    """The processes that a test starts; they keep exports."""
    found: list[subprocess.Popen] = []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **{"cwd": ROOT} | kwargs)
            if side_by_side._MODULE in args[0]:
                found.append(self)

    monkeypatch.setattr(side_by_side, "_MODULE", "tests.helpers.kept_artifact_process")
    monkeypatch.setattr(side_by_side.subprocess, "Popen", Noted)
    return found


def artifacts(output: Path) -> dict[str, dict[str, str]]:
    return {name: hashes(output / name) for name in NAMES}


class Acts(Progress):
    """Does something at a message."""

    def __init__(self, at: str, act) -> None:
        super().__init__()
        self.at, self.act = at, act

    def message(self, text: str) -> None:
        super().message(text)
        if self.at in text:
            self.act()


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_they_are_those_of_one_process(made, started, tmp_path):
    """Also when stopped, or when one process is killed, and taken up; weights, graphs, report."""
    one = run(made, tmp_path / "one")
    assert started == []
    progress, out = Progress(), tmp_path / "two"
    two = run(made, out, progress=progress, jobs=2)
    assert len(started) == 2
    assert artifacts(out) == artifacts(tmp_path / "one")
    assert [x.quality for x in two.variants] == [x.quality for x in one.variants]
    (scored,) = (x for x in progress.messages if x.startswith("scoring"))  # once, for both
    for name in NAMES:
        assert any(x.startswith(f"{name}: removing units") for x in progress.messages)
        assert any(x.startswith(f"{name}: exporting {name} in int8") for x in progress.messages)
    assert scored not in [x.partition(": ")[2] for x in progress.messages]
    run(made, out, jobs=2)
    assert len(started) == 2  # nothing was left to do


@pytest.mark.attack
def test_what_was_stopped_goes_on(made, started, tmp_path):
    """By Ctrl-C, and by a process that lacked memory; then in one process."""
    run(made, tmp_path / "one")
    out = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        run(made, out, progress=Acts("removing units", interrupt), jobs=2)
    assert [process.poll() is not None for process in started] == [True, True]
    kill = Acts("removing units", lambda: [process.kill() for process in started[2:]])
    with raises(EnvironmentProblem, "job-lost") as caught:
        run(made, out, progress=kill, jobs=2)
    assert "ended by signal 9" in str(caught.value)
    run(made, out)
    assert artifacts(out) == artifacts(tmp_path / "one")
    assert not list(out.rglob(".writing-*"))


@pytest.mark.attack
def test_an_error_of_one_process_is_that_of_the_run(made, started, tmp_path):
    rows = tmp_path / "calibration.tsv"
    spoil = Acts("making 2 artifacts", lambda: rows.write_text("text\tlabel\nw3\n"))
    with raises(InputError, "cell-count-differs") as caught:
        run(made, tmp_path / "out", progress=spoil, jobs=2)
    assert str(caught.value).startswith("keep-0.")
    assert str(rows) in str(caught.value)
    assert [process.poll() is not None for process in started] == [True, True]


def test_a_process_ends_when_the_run_is_gone():
    process = subprocess.Popen(
        [sys.executable, "-m", side_by_side._MODULE],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    output, _ = process.communicate(json.dumps({"recipe": {}, "output": ".", "number": 0}) + "\n")
    assert process.returncode == 130 or "UsageError" in output


@pytest.mark.parametrize(
    ("options", "id"),
    [
        ({"keep": ["0.5"]}, "option-without-use"),
        ({"keep": [], "speedup": 1.2, "at_batch": 4}, "options-exclude-each-other"),
    ],
)
def test_jobs_without_use_are_refused(classifier, tmp_path, options, id):
    made = recipe_for(classifier, tmp_path, **options)
    with raises(UsageError, id):
        run(made, tmp_path / "out", jobs=2)
    assert not (tmp_path / "out").exists()


def test_jobs_do_not_go_with_a_launcher(made, tmp_path, monkeypatch):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    with raises(UsageError, "options-exclude-each-other"):
        run(made, tmp_path / "out", jobs=2)


def test_the_default_is_a_job_for_each_gpu(made, monkeypatch):
    """Without GPUs, or with one, artifacts are made one after another."""
    budget = resolve(made).budget
    monkeypatch.setattr(side_by_side, "_gpus", lambda: ["4", "6", "7"])
    assert side_by_side.count_jobs(None, budget, 9, "cuda") == 3
    assert side_by_side.count_jobs(None, budget, 2, "cuda") == 2
    assert side_by_side.count_jobs(None, budget, 9, "cpu") == 1
    assert side_by_side.count_jobs(5, budget, 9, "cpu") == 5
    own = [x["CUDA_VISIBLE_DEVICES"] for x in side_by_side._environments(4, "cuda")]
    assert own == ["4", "6", "7", "4"]
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(side_by_side, "cores", lambda: 8)
    assert [x["OMP_NUM_THREADS"] for x in side_by_side._environments(3, "cpu")] == ["2"] * 3


def test_the_command_line_has_it(classifier, tmp_path):
    done = compress(
        "run", "--model", classifier, "--calibration", toy.labels_file(tmp_path / "rows.tsv"),
        "--keep", "0.5", "--output", tmp_path / "out", "--jobs", 2,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--jobs 2 makes artifacts of several budgets side by side" in done.stderr
