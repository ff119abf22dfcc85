"""Artifacts of several budgets, made side by side, each by a process of its own.

What all budgets share is computed before, once: the dense model's graphs, scores, answers and
translations. A process (`compressor.pipeline.artifact_process`) makes one artifact in the directory
of the run, as stages; the run then goes on as if it had made them itself. Quality and speed are
measured afterwards, in one process: models that are timed beside each other slow each other down.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor import errors, parallel
from compressor.budgets import Budget
from compressor.errors import CompressError, EnvironmentProblem, UsageError
from compressor.parallel import launch
from compressor.progress import Progress
from compressor.request.plan import RunPlan
from compressor.throughput.hardware import cores
from compressor.throughput.memory import environment

if TYPE_CHECKING:
    from compressor.pipeline.artifacts import ArtifactMaker

_THREADS = "OMP_NUM_THREADS"
_GPUS = "CUDA_VISIBLE_DEVICES"
_MODULE = "compressor.pipeline.artifact_process"


def require_jobs(jobs: int | None, budget: Budget) -> None:
    """Check that there is something to make side by side, if that is asked for.

    Raises:
        UsageError: `jobs` is more than 1 and the artifacts have to be made by one process.
    """
    if jobs is None or jobs == 1:
        return
    if launch.processes() > 1:
        raise UsageError(
            f"--jobs {jobs} does not go with the {launch.processes()} processes that a launcher "
            "started, which share the work on each artifact; leave it out, or start one process",
            id="options-exclude-each-other",
        )
    if budget.timed_batch is not None or budget.searches_rows:
        raise UsageError(
            f"--jobs {jobs} does not go with {budget.as_typed}, which measures while it chooses; "
            "leave it out",
            id="options-exclude-each-other",
        )
    if len(budget.each()) == 1:
        raise UsageError(
            f"--jobs {jobs} makes artifacts of several budgets side by side, and there is one "
            f"({budget.each()[0].text}); leave it out, or give more budgets",
            id="option-without-use",
        )


def count_jobs(jobs: int | None, budget: Budget, artifacts: int, device: str) -> int:
    """How many processes make artifacts at the same time.

    Args:
        jobs: as asked for; None for one on each GPU, and one without.
    """
    if jobs is None:
        alone = parallel.size() > 1 or budget.timed_batch is not None or budget.searches_rows
        jobs = 1 if alone or device != "cuda" else len(_gpus())
    return max(1, min(jobs, artifacts))


def side_by_side(plan: RunPlan, maker: ArtifactMaker, output: Path, jobs: int | None) -> None:
    """Make the artifacts that are not there, if there is more than one process for them.

    Raises:
        CompressError: what one of the processes met; the others are ended.
        EnvironmentProblem: one of them was killed.
    """
    workspace, device = maker.workspace, maker.inputs.device
    names = [trials.plan.name for trials in maker.trials]
    numbers = [number for number, name in enumerate(names) if not _is_made(maker, name)]
    jobs = count_jobs(jobs, plan.budget, len(numbers), device)
    if jobs < 2:
        return
    if not plan.method.learns:
        maker.trials[0].scores()  # all budgets start from them
    workspace.doing = f"making {len(numbers)} artifacts, {jobs} at a time"
    workspace.progress.message(f"{workspace.doing} …")
    request = {"recipe": dict(plan.options) | {"device": device}, "output": str(output)}
    with _Processes(jobs, device, workspace.progress) as processes:
        waiting, done = list(numbers), 0
        while done < len(numbers):
            while waiting and processes.free:
                number = waiting.pop(0)
                processes.start(names[number], request | {"number": number})
            done += processes.wait_for_message()
            workspace.progress.update("artifacts made", done, len(numbers))
    workspace.mute_finished()


def _is_made(maker: ArtifactMaker, name: str) -> bool:
    """Whether all builds of an artifact have records; reading them later checks that they hold."""
    later = [f"precision-{name}-{precision}" for precision in maker.inputs.precisions[1:]]
    state = maker.workspace.state
    return all((state / f"{label}.json").exists() for label in (f"build-{name}", *later))


def _gpus() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    import torch

    given = os.environ.get(_GPUS)
    names = None if given is None else [name.strip() for name in given.split(",") if name.strip()]
    count = torch.cuda.device_count()
    return [str(number) for number in range(count)] if names is None else names[:count]


@dataclass
class _Process:
    """A process that makes an artifact.

    Args:
        error: the one that it sent before it ended.
    """

    name: str
    slot: int
    process: subprocess.Popen[str]
    error: dict[str, Any] | None = None


class _Processes:
    """Processes that make artifacts; ended with the block, however that ends."""

    def __init__(self, jobs: int, device: str, progress: Progress) -> None:
        self._environments = _environments(jobs, device)
        self._progress = progress
        self._running: dict[int, _Process] = {}  # by slot
        # Slot, and what the process wrote; None when it has ended.
        self._lines: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for running in self._running.values():
            running.process.terminate()
        for running in self._running.values():
            running.process.wait()

    @property
    def free(self) -> bool:
        """Whether one more may be started."""
        return len(self._running) < len(self._environments)

    def start(self, name: str, request: dict[str, Any]) -> None:
        """Start the process of an artifact."""
        slot = next(i for i in range(len(self._environments)) if i not in self._running)
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=self._environments[slot],
        )
        self._running[slot] = _Process(name, slot, process)
        assert process.stdin is not None
        # It stays open: the process ends when this one is gone.
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        threading.Thread(target=self._listen, args=(slot, process), daemon=True).start()

    def wait_for_message(self) -> int:
        """Wait for a message of one of the processes; returns how many ended with it, 0 or 1.

        Raises:
            CompressError: one ended with an error.
        """
        slot, message = self._lines.get()
        running = self._running[slot]
        if message is None:
            del self._running[slot]
            status = running.process.wait()
            for pipe in (running.process.stdin, running.process.stdout):
                assert pipe is not None
                pipe.close()
            _require_success(running, status)
            return 1
        running.error = message.get("error", running.error)
        if "message" in message:
            self._progress.message(f"{running.name}: {message['message'].strip()}")
        if "detail" in message:
            self._progress.detail(message["detail"])
        return 0

    def _listen(self, slot: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put((slot, json.loads(line)))
        self._lines.put((slot, None))


def _environments(jobs: int, device: str) -> list[dict[str, str]]:
    """The environment of each process that runs at the same time: its GPU, or its threads."""
    shared = environment()
    if device == "cuda":
        gpus = _gpus()
        return [shared | {_GPUS: gpus[slot % len(gpus)]} for slot in range(jobs)]
    # Processes that each took all cores would slow each other down; a number that is set stays.
    threads = max(1, cores() // jobs)
    return [{_THREADS: str(threads)} | shared] * jobs


def _require_success(ended: _Process, status: int) -> None:
    """Raise what a process met, if it did not end well."""
    if ended.error is not None:
        kind = getattr(errors, ended.error["kind"])
        assert issubclass(kind, CompressError)
        raise kind(f"{ended.name}: {ended.error['message']}", id=ended.error["id"])
    if status < 0:
        raise EnvironmentProblem(
            f"the process that made {ended.name} was ended by signal {-status}, probably for lack "
            "of memory; give fewer --jobs, and the same command goes on",
            id="job-lost",
        )
    if status == 130:
        raise KeyboardInterrupt
    if status:
        raise RuntimeError(f"the process that made {ended.name} ended with status {status}")
