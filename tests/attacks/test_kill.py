"""A run that is killed while it writes: the same command makes the same files, and no others.

The run is killed at its n-th write to the file system, in a process of its own, and started again.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest

from compressor.options.recipe import Recipe
from compressor.pipeline.run import run
from compressor.storage.manifest import find_change, read_manifest
from compressor.training import loop
from tests.helpers import toy
from tests.helpers.runs import hashes, recipe_for

pytestmark = [pytest.mark.attack, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND


def in_process(function: Callable[[], object], kill: signal.Signals | None, at: int) -> int:
    """Run a function in a forked process that gets a signal at its n-th write below "out".

    Returns:
        Its exit status, negative for a signal; 99 if it ended before.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        written = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal written
            opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
            if kill is None or not (opened or event in CHANGES):
                return
            if f"{os.sep}out" in str(arguments[0]):
                written += 1
                if written == at:
                    os.kill(os.getpid(), kill)

        sys.addaudithook(hook)
        function()
        status = 99 if kill is not None else 0
    except KeyboardInterrupt:
        status = 130
    except BaseException:  # noqa: BLE001 - whatever it is, this process ends here
        traceback.print_exc()
    finally:
        os._exit(status)


Job = tuple[Callable[[Path], object], Path]


def job_of(recipe: Recipe, made: Path) -> Job:
    """A run to start anywhere, and what it makes."""

    def start(output: Path) -> None:
        # In a process of its own. Training saves after every step.
        loop.SAVE_SECONDS, loop._MOST_SAVING = -1.0, 1e9
        run(recipe, output)

    assert in_process(lambda: start(made), None, 0) == 0
    return start, made


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Job:
    """A short run without training."""
    inputs = tmp_path_factory.mktemp("inputs")
    options = {"bench": False, "precision": ["fp32,int8"]}
    recipe = recipe_for(toy.classifier(inputs / "bert"), inputs, **options)
    return job_of(recipe, inputs / "out")


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Job:
    """A short run that learns a mask, translates text and learns from the translations."""
    inputs = tmp_path_factory.mktemp("training")
    text = inputs / "text.txt"
    text.write_text("".join(f"{line}\n" for line in toy.sentences(40, 5)), encoding="utf-8")
    options = {
        "method": "hard-concrete", "gate_epochs": 2, "recover": "distill", "distill_epochs": 2,
        "distill_text": str(text), "floor": "0", "bench": False,
    }  # fmt: skip
    recipe = recipe_for(toy.translator(inputs / "marian"), inputs, **options)
    return job_of(recipe, inputs / "out")


def remains(output: Path) -> list[str]:
    """What should not be there after a run: files that were being written."""
    found = [*output.rglob(".writing-*"), *output.rglob("lock*")]
    return [path.relative_to(output).as_posix() for path in found]


def check_killed(job: Job, output: Path, kill, at) -> bool:
    """Kill a run, look at what it left, and finish it; False if it had fewer writes."""
    start, expected = job
    status = in_process(lambda: start(output), kill, at)
    if status == 99:
        return False
    assert status == (130 if kill == signal.SIGINT else -kill)
    wanted = hashes(expected)
    # Nothing is half written under its final name; precisions and the default come later.
    whole = {n: d for n, d in hashes(output).items() if n != "onnx/graphs.json"}
    assert whole.items() <= wanted.items()
    assert in_process(lambda: start(output), None, 0) == 0
    assert hashes(output) == wanted
    assert remains(output) == []
    listed = read_manifest(output)
    assert listed is not None
    assert set(listed) == set(read_manifest(expected) or {})
    assert [name for name, x in listed.items() if find_change(output, name, x)] == []
    return True


def kill_everywhere(job: Job, folder: Path, first: int, step: int) -> int:
    """Kill runs at writes that are so far apart, by signals in turn; how many writes there are."""
    at, signals = first, cycle((signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    while check_killed(job, folder / f"{at}" / "out", next(signals), at):
        at += step
    return at


def test_a_run_may_be_killed_at_any_write(job, tmp_path):
    assert kill_everywhere(job, tmp_path, 1, 31) > 100


def test_a_training_run_may_be_killed_at_any_write(training, tmp_path):
    assert kill_everywhere(training, tmp_path, 2, 61) > 150
