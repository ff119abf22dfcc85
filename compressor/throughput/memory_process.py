"""The process whose memory is measured: `python -m compressor.throughput.memory_process REQUEST`.

REQUEST is the JSON file that `compressor.throughput.memory` writes; the result is one line of JSON
on stdout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

from compressor.errors import CompressError
from compressor.throughput.hardware import run_tool

_STATUS = Path("/proc/self/status")


def main(arguments: Sequence[str]) -> int:
    """Run the request whose path is the only argument."""
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    try:
        start = time.perf_counter()
        # By import string: importing `compressor.tasks` would count as the artifact's memory.
        module, _, name = request["runtime"].partition(":")
        kind = getattr(import_module(module), name)
        runtime = kind(request["directory"], verify=False, **request["open"])
        load_seconds = time.perf_counter() - start
        for path in request["batches"]:
            with np.load(path) as arrays:
                runtime.compute(dict(arrays), **request["run"])
    except CompressError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    device = device_mib() if request["open"]["device"] == "cuda" else None
    result = {"host_mib": host_peak_mib(), "device_mib": device, "load_seconds": load_seconds}
    print(json.dumps(result))
    return 0


def host_peak_mib() -> float | None:
    """Peak resident memory of this process; None on systems that do not report it."""
    # Linux first: its ru_maxrss starts at the peak of the process that forked this one, which may
    # have a model loaded.
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024  # bytes there, KiB elsewhere


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
