"""Time of `compress export` with and without the shortcut of `compressor.export.tracing`.

    python -m benchmarks.export_time MODEL [MODEL ...] [--repeats 3]

Each repeat exports the model twice in a new process with the shortcut and twice in a new process
without. The first export of a process also fills the exporter's tables; the second is what
every further model of a run takes. Both are the whole command: opening the checkpoint, graphs,
tokenizer and verification; imports are not counted. Prints the median of each and what is saved.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

CHILD = """
import contextlib, hashlib, json, sys, tempfile, time
from pathlib import Path
import torch
from compressor.commands import invoke as run
from compressor.export import graphs, optimum, precisions, tokenizer, verify

model, shortcut = sys.argv[1], sys.argv[2] == "with"
torch.set_num_threads(1)
if not shortcut:
    graphs.quick_exporter = contextlib.nullcontext
found = []
for _ in range(2):
    with tempfile.TemporaryDirectory() as directory:
        wall, cpu = time.perf_counter(), time.process_time()
        with contextlib.redirect_stdout(sys.stderr):
            assert run(["export", "--model", model, "--output", directory + "/out"]) == 0
        times = [time.perf_counter() - wall, time.process_time() - cpu]
        files = sorted(Path(directory, "out", "onnx").glob("*.onnx"))
        found.append([*times, [hashlib.sha256(f.read_bytes()).hexdigest()[:12] for f in files]])
print(json.dumps(found))
"""


def measure(model: str, mode: str) -> list[tuple[float, float, list[str]]]:
    """(wall seconds, CPU seconds, hashes of the graphs) of two exports in one new process."""
    command = [sys.executable, "-c", CHILD, model, mode]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    for model in args.models:
        runs: dict[str, list] = {"with": [], "without": []}
        for _ in range(args.repeats):
            for mode in runs:
                runs[mode].append(measure(model, mode))
        for export, label in enumerate(("first", "second")):
            for kind, unit in enumerate(("wall", "CPU")):
                with_, without = (
                    statistics.median(pair[export][kind] for pair in runs[mode]) for mode in runs
                )
                print(
                    f"{model} {label} export, {unit} seconds: {with_:.2f} with, {without:.2f} "
                    f"without, {1 - with_ / without:.0%} saved",
                    flush=True,
                )
        same = {str(pair[1][2]) for pairs in runs.values() for pair in pairs}
        print(f"{model} graphs: {', '.join(sorted(same))}")


if __name__ == "__main__":
    main()
