"""What `--jobs` gains: a run of several budgets, its artifacts one after another or side by side.

    python -m benchmarks.jobs --tatoeba DIR [--jobs 2] [--rows 1000] [--repeats 3]

The bundled translator is cut to three shares of its multiply-adds, reconstructed, and exported in
fp32 and int8. One job has all cores; several share them. Seconds of the whole run, in turns.
Results go to benchmarks/results/jobs.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.pages import markdown_table, publish, title_of
from compressor.request import example
from compressor.throughput.hardware import cores


def seconds(jobs: int, options: Sequence[str]) -> float:
    """Seconds of one run by the clock."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "compressor", "run", *options, "--jobs", str(jobs),
             "--output", f"{folder}/out"],
            env=environment, capture_output=True, check=True,
        )  # fmt: skip
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tatoeba", type=Path, required=True, help="valid.tsv and test.tsv")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    options = [
        "--model", str(example.model()), "--calibration", str(args.tatoeba / "valid.tsv"),
        "--calibration-rows", str(args.rows), "--test", str(args.tatoeba / "test.tsv"),
        "--test-rows", str(args.rows), "--macs", "0.8,0.6,0.4", "--precision", "fp32,int8",
        "--no-bench", "--device", "cpu",
    ]  # fmt: skip
    found: dict[int, list[float]] = {1: [], args.jobs: []}
    for _ in range(args.repeats):
        for jobs, runs in found.items():
            runs.append(seconds(jobs, options))
    rows = []
    for jobs, runs in found.items():
        ratios = [one / several for one, several in zip(found[1], runs, strict=True)]
        rows.append(
            [
                str(jobs),
                f"{statistics.median(runs):.0f}",
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            ]
        )
    publish(
        "jobs",
        f"{title_of(cores())} in all: three artifacts, {args.rows} calibration rows, median of "
        f"{args.repeats} runs in turns.\n\n"
        f"{markdown_table(['jobs', 'seconds', 'times as fast'], 'rrr', rows)}\n",
    )


if __name__ == "__main__":
    main()
