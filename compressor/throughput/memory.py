"""Peak memory of running an artifact, in a fresh process that does nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from compressor.errors import CompressError, EnvironmentProblem
from compressor.throughput.hardware import run_tool
from compressor.throughput.workloads import Batch

_STATUS = Path("/proc/self/status")
# Not `-m`, which warns of a module that its package has imported already.
_PROCESS = "import sys; from compressor.throughput.memory import main; sys.exit(main(sys.argv[1]))"


def measure_memory(
    directory: Path,
    runtime: str,
    batches: Sequence[Batch],
    options: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
    **opening: Any,
) -> float | None:
    """Peak memory of a process that loads an artifact and runs each batch once.

    On the CPU it is its resident memory; on a GPU the memory there after the last batch, which is
    the peak, since onnxruntime frees nothing earlier.

    Args:
        directory: of the artifact.
        runtime: import string of its runtime class, as `Task.runtime`.
        batches: padded, as the runtime takes them.
        options: of `Runtime.compute`.
        device: `cpu` or `cuda`.
        opening: further options of the runtime class.

    Returns:
        MiB; None where the system does not report it.

    Raises:
        EnvironmentProblem: the process failed; the message ends with the process's own.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / f"{number}.npz") for number in range(len(batches))]
        for file, batch in zip(files, batches, strict=True):
            np.savez(file, **batch)  # type: ignore[arg-type]
        request = {
            "directory": str(Path(directory).resolve()),
            "runtime": runtime,
            "batches": files,
            "run": dict(options or {}),
            "open": {"device": device, **opening},
        }
        path = Path(folder) / "request.json"
        path.write_text(json.dumps(request), encoding="utf-8")
        # This package, also from a checkout.
        paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]
        done = subprocess.run(
            [sys.executable, "-c", _PROCESS, str(path)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            check=False,
        )
    if done.returncode:
        status = done.returncode
        reason = f"it ended with status {status}; try smaller batches"
        if status < 0:
            reason = f"signal {-status} ended it, probably for lack of memory; try smaller batches"
        elif lines := done.stderr.strip().splitlines():
            reason = lines[-1]
        raise EnvironmentProblem(
            f"measuring the memory of {directory} failed: {reason}", id="memory-measurement-failed"
        )
    peak: float | None = json.loads(done.stdout.splitlines()[-1])
    return peak


def main(path: str) -> int:
    """Carry out a request of `measure_memory` in the process whose memory is measured.

    Args:
        path: of the request, a JSON file.

    Returns:
        The exit status; the memory in MiB is printed.
    """
    request = json.loads(Path(path).read_text(encoding="utf-8"))
    try:
        # By import string, as tasks name it: a process imports only the runtime that it measures.
        module, _, name = request["runtime"].partition(":")
        kind = getattr(import_module(module), name)
        runtime = kind(request["directory"], verify=False, **request["open"])
        for batch in request["batches"]:
            with np.load(batch) as arrays:
                runtime.compute(dict(arrays), **request["run"])
    except CompressError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(host_peak_mib() if request["open"]["device"] == "cpu" else device_mib()))
    return 0


def host_peak_mib() -> float | None:
    """Peak resident memory of this process; None on systems that do not report it."""
    # Not `getrusage`, which starts at the peak of the process that forked this one.
    status = _STATUS.read_text(encoding="utf-8") if _STATUS.exists() else ""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else None


def device_mib() -> float | None:
    """GPU memory of this process; None if the driver does not list processes."""
    listed = run_tool(
        "nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"
    )
    for line in listed.splitlines():
        process, _, used = line.partition(", ")
        if process == str(os.getpid()) and used.strip().isdigit():
            return float(used)
    return None
