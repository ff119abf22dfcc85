"""What beams cost and bring: greedy search beside four beams, dense and pruned.

    python -m benchmarks.beams DENSE ARTIFACT … --rows FILE [--count 1000]

The first directory is the dense artifact (`compress export`), the others its pruned ones. Each
translates the rows with every number of beams, all in turns, on one thread, in one call, whose
batches the runtime chooses. Results go to benchmarks/results/beams.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from benchmarks.pages import markdown_table, publish, title_of
from compressor.evaluation import score_rows
from compressor.runtime import Translator
from compressor.runtime.artifact import read_artifact
from compressor.tasks import TASKS

BEAMS = (1, 4)
ROUNDS = 3
TASK = TASKS["translation"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="ARTIFACT")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1000)
    args = parser.parse_args()
    rows = TASK.read_rows(args.rows, limit=args.count)
    models = {
        (directory, precision): Translator(directory, precision=precision, threads=1)
        for directory in args.artifacts
        for precision in sorted(read_artifact(directory).precisions)
    }
    ways = [(*build, beams) for beams in BEAMS for build in models]
    seconds: dict[tuple[Path, str, int], list[float]] = {way: [] for way in ways}
    bleu = {}
    for _ in range(ROUNDS):
        for *build, beams in ways:
            began = time.perf_counter()
            found = models[build[0], build[1]].translate(rows.sources, num_beams=beams)
            seconds[build[0], build[1], beams].append(time.perf_counter() - began)
            bleu[build[0], build[1], beams] = score_rows(rows, found).metrics["bleu"]
    lines = []
    for directory, precision, beams in ways:
        dense = seconds[args.artifacts[0], "fp32", beams]
        taken = seconds[directory, precision, beams]
        gains = [one / other for one, other in zip(dense, taken, strict=True)]
        greedy = seconds[directory, precision, 1]
        costs = [one / other for one, other in zip(taken, greedy, strict=True)]
        lines.append([
            str(beams), directory.name, precision, f"{bleu[directory, precision, beams]:.2f}",
            f"{statistics.median(gains):.2f} [{min(gains):.2f}, {max(gains):.2f}]",
            f"{statistics.median(costs):.2f}",
        ])  # fmt: skip
    titles = ["beams", "artifact", "precision", "BLEU", "times as fast as dense fp32"]
    titles += ["time, greedy = 1"]
    publish(
        "beams",
        f"{title_of(1)}: {rows.count} rows in one call, median and range of {ROUNDS} rounds in "
        f"turns.\n\n{markdown_table(titles, 'rllr', lines)}\n",
    )


if __name__ == "__main__":
    main()
