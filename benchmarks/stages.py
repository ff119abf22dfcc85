"""A run of `compress` whose stages are each measured: `python -m benchmarks.stages FILE ARGUMENTS`.

ARGUMENTS are those of `compress`. FILE gets a JSON list of `Stage`, in the order in which stages
began. What happens before the first one is `load`; what happens between two stages belongs to the
one before, so the last one has the report too. Linux only: peaks are reset by way of `/proc`.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# Step of a run -> its name in results.
NAMES = {
    "run_metadata": "started", "export_dense": "dense", "score": "scores", "choose": "choice",
    "prune_units": "build", "recover_units": "build", "save_model": "build",
    "export_saved": "build", "export_precision": "precision", "check_precision": "precision",
    "answer": "answers", "compare_rows": "comparison", "time_models": "throughput",
}  # fmt: skip
_PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class Stage:
    """What a stage took."""

    name: str  # of the step
    seconds: float  # by the clock
    cpu_seconds: float  # of all threads, in user and in system mode
    peak_mib: float  # largest resident memory, files that are mapped included
    written_mib: float  # handed to the system to write, as files or otherwise


def halve(model: Path, rows: Path, count: int, output: Path, *more: str) -> list[Stage]:
    """`measure` a run that halves a model by its first rows, by its heads and neurons.

    Float32 and int8 are exported and evaluated on the same rows, and not timed.
    """
    arguments = ["--model", str(model), "--output", str(output), "--macs", "0.5", "--no-bench"]
    arguments += ["--prune", "both"]
    arguments += ["--calibration", str(rows), "--calibration-rows", str(count)]
    arguments += ["--test", str(rows), "--test-rows", str(count), "--precision", "fp32,int8"]
    return measure(["run", *arguments, *more])


def measure(arguments: Sequence[str]) -> list[Stage]:
    """Run `compress` in a process of its own; `CalledProcessError` if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stages.json"
        command = [sys.executable, "-m", "benchmarks.stages", str(path), *arguments]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return [Stage(**found) for found in json.loads(path.read_text(encoding="utf-8"))]


class _Meter:
    """Closes the stage that runs and opens the next."""

    def __init__(self) -> None:
        self.found: list[Stage] = []
        self._open("load")

    def _open(self, name: str) -> None:
        (_PROCESS / "clear_refs").write_text("5", encoding="utf-8")  # resets the peak, see proc(5)
        self._name, self._began = name, _counters()

    def next(self, name: str) -> None:
        now, began = _counters(), self._began
        peak = int(_field("status", "VmHWM").split()[0]) / 1024
        self.found.append(Stage(self._name, now[0] - began[0], now[1] - began[1], peak,
                                (now[2] - began[2]) / 2**20))  # fmt: skip
        self._open(name)


def _counters() -> tuple[float, float, int]:
    """Seconds by the clock, CPU seconds, bytes written."""
    times = os.times()
    return time.perf_counter(), times.user + times.system, int(_field("io", "wchar"))


def _field(file: str, name: str) -> str:
    lines = (_PROCESS / file).read_text(encoding="utf-8").splitlines()
    return next(line.partition(":")[2] for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    from compressor.commands import main as compress
    from compressor.steps.store import Steps

    path = Path(sys.argv[1])
    meter, begin = _Meter(), Steps.begin

    def measured(self: Steps, label: str, title: str) -> None:
        name = label.rpartition("-")[0]
        meter.next(NAMES.get(name, name))
        begin(self, label, title)

    def write() -> None:
        meter.next("")
        path.write_text(json.dumps([asdict(stage) for stage in meter.found]), encoding="utf-8")

    Steps.begin = measured  # type: ignore[method-assign]
    atexit.register(write)
    sys.argv = ["compress", *sys.argv[2:]]
    compress()


if __name__ == "__main__":
    main()
