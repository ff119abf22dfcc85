"""Seconds to load a peer and peak memory of running one batch, measured in a new process.

python -m benchmarks.speed.fresh REQUEST.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.peers import Peer, open_peer
from compressor.throughput.measure import Batch
from compressor.throughput.memory import device_mib, host_peak_mib

ROOT = Path(__file__).resolve().parents[2]


def measure_fresh(
    peer: Peer, batch: Batch, length: int | None, device: str, threads: int
) -> dict[str, float | None]:
    """`load_seconds`, `first_seconds` (of the first batch) and `peak_mib` of a new process.

    Loading includes the import of the program's libraries. On CUDA `peak_mib` is GPU memory, None
    where the driver does not report it.
    """
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "batch.npz", **batch)  # type: ignore[arg-type]
        request = Path(folder) / "request.json"
        content = {
            "peer": peer.to_json(),
            "batch": str(Path(folder) / "batch.npz"),
            "length": length,
            "device": device,
            "threads": threads,
        }
        request.write_text(json.dumps(content), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.speed.fresh", str(request)],
            capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{peer.name} failed in a new process: {done.stderr[-2000:]}")
    found: dict[str, float | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(path: str) -> None:
    request: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    begun = time.perf_counter()
    run = open_peer(Peer(**request["peer"]), request["device"], request["threads"])
    loaded = time.perf_counter()
    with np.load(request["batch"]) as arrays:
        batch = dict(arrays)
    start = time.perf_counter()
    run(batch, request["length"])
    answer = {
        "load_seconds": loaded - begun,
        "first_seconds": time.perf_counter() - start,
        "peak_mib": device_mib() if request["device"] == "cuda" else host_peak_mib(),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
