"""What several processes gain over one, stage by stage.

    python -m benchmarks.ranks --tatoeba DIR [--processes 2] [--rows 2000] [--repeats 3]

The bundled translator is cut to 60 % of its multiply-adds, reconstructed, distilled for an epoch,
and evaluated on test rows; PyTorch has one thread in each process, onnxruntime, which answers test
rows, all cores. Stages of less than half a second are left out. One process and several take turns.
Results go to benchmarks/results/ranks.md.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.pages import markdown_table, publish, title_of
from compressor.request import example

_STAGE = re.compile(r"^  ([a-z][\w.-]*): ([\d.]+) s$", re.MULTILINE)


def seconds(processes: int, options: Sequence[str]) -> dict[str, float]:
    """Stage -> seconds of one run."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [
                sys.executable, "-m", *(launcher if processes > 1 else []), "compressor", "run",
                *options, "--output", f"{folder}/out",
            ],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
    return {name: float(value) for name, value in _STAGE.findall(ended.stderr)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tatoeba", type=Path, required=True, help="valid.tsv and test.tsv")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    options = [
        "--model", str(example.model()), "--calibration", str(args.tatoeba / "valid.tsv"),
        "--calibration-rows", str(args.rows), "--test", str(args.tatoeba / "test.tsv"),
        "--test-rows", str(args.rows), "--macs", "0.6", "--recover", "reconstruct+distill",
        "--distill-epochs", "1", "--no-bench", "--device", "cpu", "--verbose",
    ]  # fmt: skip
    found: dict[int, list[dict[str, float]]] = {1: [], args.processes: []}
    for _ in range(args.repeats):
        for processes, runs in found.items():
            runs.append(seconds(processes, options))
    one, several = found[1], found[args.processes]
    rows = []
    for name in [stage for stage in one[0] if stage in several[0] and one[0][stage] >= 0.5]:
        ratios = [a[name] / max(b[name], 1e-3) for a, b in zip(one, several, strict=True)]
        rows.append(
            [
                name,
                f"{statistics.median(run[name] for run in one):.1f}",
                f"{statistics.median(run[name] for run in several):.1f}",
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            ]
        )
    titles = ["stage", "one process, s", f"{args.processes} processes, s", "times as fast"]
    publish(
        "ranks",
        f"{title_of(1)} for each process: {args.rows} rows, median of {args.repeats} runs in "
        f"turns.\n\n{markdown_table(titles, 'lr', rows)}\n",
    )


if __name__ == "__main__":
    main()
