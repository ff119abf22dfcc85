"""Peak memory of running an artifact, in a fresh process that does nothing else.

This module starts the process, `compressor.throughput.memory_process`, and reads its result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compressor.errors import EnvironmentProblem
from compressor.throughput.workloads import Batch


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one process that loaded an artifact and ran its batches."""

    host_mib: float | None  # peak resident memory; None on systems that do not report it
    # GPU memory after the last batch, which is the peak, since onnxruntime frees nothing earlier;
    # None on the CPU, and if the driver does not list processes.
    device_mib: float | None
    load_seconds: float

    def peak_mib(self, device: str) -> float | None:
        """GPU memory on a GPU, and the process's memory on a CPU."""
        return self.host_mib if device == "cpu" else self.device_mib


def measure_memory(
    directory: Path,
    runtime: str,
    batches: Sequence[Batch],
    options: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
    precision: str | None = None,
    threads: int | None = None,
    cuda_graphs: bool = True,
    engine: str = "onnxruntime",
) -> MemoryUse:
    """Load an artifact in a fresh process, run each batch once, and report memory and load time.

    Args:
        runtime: import string of its runtime class, as `Task.runtime`.
        batches: padded batches as the runtime takes them.
        options: of `Runtime.compute`.

    Raises:
        EnvironmentProblem: the process failed; the message ends with the process's own.
    """
    with tempfile.TemporaryDirectory() as folder:
        for number, batch in enumerate(batches):
            np.savez(Path(folder) / f"{number}.npz", **batch)  # type: ignore[arg-type]
        request = {
            "directory": str(Path(directory).resolve()),
            "runtime": runtime,
            "batches": [str(Path(folder) / f"{number}.npz") for number in range(len(batches))],
            "run": dict(options or {}),
            "open": {
                "device": device,
                "precision": precision,
                "threads": threads,
                "cuda_graphs": cuda_graphs,
                "engine": engine,
            },
        }
        # This package, also from a checkout.
        paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]
        path = Path(folder) / "request.json"
        path.write_text(json.dumps(request), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "compressor.throughput.memory_process", str(path)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            check=False,
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        status = done.returncode
        reason = lines[-1] if lines else f"it ended with status {status}; try smaller batches"
        if status < 0:
            reason = f"signal {-status} ended it, probably for lack of memory; try smaller batches"
        raise EnvironmentProblem(
            f"measuring the memory of {directory} failed: {reason}", id="memory-measurement-failed"
        )
    return MemoryUse(**json.loads(done.stdout.splitlines()[-1]))
