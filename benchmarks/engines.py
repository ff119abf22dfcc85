"""What each engine makes of an artifact: rows a second of every build in every engine, in turns.

    python -m benchmarks.engines DENSE PRUNED --rows FILE [--threads N]

Both are artifacts of one model; every engine that runs the task runs both in all its precisions.
Rows of FILE are cut or filled to a number of tokens; translators generate as many as they read.
Results are added to benchmarks/results/engines-TASK.json, a section for each processor, and drawn
into engines-TASK.md.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pages import (
    RESULTS,
    markdown_table,
    publish,
    title_of,
    with_interval,
    write_section,
)
from compressor.errors import UsageError
from compressor.pipeline.engines import Build, builds_of
from compressor.runtime import collate
from compressor.runtime.artifact import read_artifact
from compressor.runtime.engines import ENGINES
from compressor.tasks import TASKS, Task
from compressor.throughput.measure import measure
from compressor.throughput.statistics import against_dense, summarize
from compressor.throughput.workloads import Workload, make_workloads

Row = dict[str, Any]
# Rows and source tokens.
SHAPES = {
    "classification": ((1, 16), (16, 16), (64, 32), (16, 128)),
    "translation": ((1, 20), (16, 20), (64, 20)),
}
PRECISIONS = ("fp32", "int8", "bf16")
# A dense batch takes up to half a second.
RUNS: dict[str, Any] = {"warmup": 4, "min_runs": 12, "min_seconds": 1.0}


def builds(directory: Path, task: Task) -> list[Build]:
    """An artifact in every engine that runs it, and in every precision."""
    artifact, engines = read_artifact(directory), []
    for name in ENGINES:
        try:
            task.engine(name)
        except UsageError:  # it runs no such models
            continue
        engines.append(name)
    names = [
        name for name in PRECISIONS
        if any(name in task.engine(engine).precisions(directory, artifact) for engine in engines)
    ]  # fmt: skip
    return builds_of(directory, artifact, engines, names)


def timed(dense: Path, pruned: Path, rows: Path, threads: int) -> list[Row]:
    """A line for each build and shape."""
    task = TASKS[read_artifact(dense).task]
    found = {"dense": builds(dense, task), "pruned": builds(pruned, task)}
    runtimes = {
        f"{name} {build.engine} {build.precision}": task.open(
            build.directory, engine=build.engine, precision=build.precision, threads=threads
        )
        for name, made in found.items()
        for build in made
    }
    engines = {name: runtime.engine for name, runtime in runtimes.items()}
    reference = next(iter(runtimes.values()))
    artifact = reference.artifact
    texts = task.read_rows(rows, labels=artifact.labels)
    encoded = reference.encode(texts.sources, texts.pairs)
    lines = []
    for size, tokens in SHAPES[task.name]:
        options: dict[str, Any] = {}
        if "--target-length" in task.options:  # it generates
            options["forced_length"] = tokens
        (load,) = make_workloads(
            encoded,
            [size],
            lambda chosen: collate(chosen, artifact.pad_token_id, artifact.inputs),
            lengths=tokens,
        )
        loads = [Workload.of(load.batches[:1])]
        runs = {name: partial(runtime.compute, **options) for name, runtime in runtimes.items()}
        samples = measure(runs, loads, progress=print, **RUNS)
        dense_builds = [name for name in runs if name.startswith("dense")]
        timings = summarize(samples, loads, reference=dense_builds[0])
        for row in against_dense(timings, samples, loads, engines, dense_builds):
            name, engine, precision = row.variant.split()
            lines.append({
                "model": name, "engine": engine, "version": task.engine(engine).version(),
                "precision": precision, "rows": size, "tokens": tokens,
                "rows_per_second": round(row.sentences_per_second, 1),
                "same": (row.engine_speedup, row.engine_speedup_interval),
                "fastest": (row.fastest_speedup, row.fastest_speedup_interval),
            })  # fmt: skip
    return lines


def draw(sections: dict[str, list[Row]]) -> str:
    """Markdown: for each processor a table of rows a second, and one over the fastest dense."""
    lines = []
    for title, rows in sections.items():
        shapes = list(dict.fromkeys((row["rows"], row["tokens"]) for row in rows))
        heads = ["model", "engine", "precision", *(f"{size} × {tokens}" for size, tokens in shapes)]
        by_build: dict[tuple[str, ...], dict[tuple[int, int], Row]] = {}
        for row in rows:
            key = (row["model"], f"{row['engine']} {row['version']}", row["precision"])
            by_build.setdefault(key, {})[row["rows"], row["tokens"]] = row
        rates = [
            [*key, *(f"{found[shape]['rows_per_second']:.0f}" for shape in shapes)]
            for key, found in by_build.items()
        ]
        gains = [
            [*key, *(with_interval(*found[shape]["fastest"]) for shape in shapes)]
            for key, found in by_build.items()
        ]
        lines += [
            f"{title}: rows a second, by batch (rows × tokens).", "",
            markdown_table(heads, "lllr", rates), "",
            "The same, times as fast as the fastest dense build of any engine, with 95 % "
            "intervals.", "",
            markdown_table(heads, "lllr", gains), "",
        ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dense", type=Path)
    parser.add_argument("pruned", type=Path)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    name = f"engines-{TASKS[read_artifact(args.dense).task].name}"
    rows = timed(args.dense, args.pruned, args.rows, args.threads)
    title = title_of(args.threads)
    if "hide_avx512" in os.environ.get("LD_PRELOAD", ""):
        title += ", with AVX2 and nothing newer (benchmarks.hide_avx512)"
    sections = write_section(RESULTS / f"{name}.json", title, rows)
    publish(name, draw(sections))


if __name__ == "__main__":
    main()
