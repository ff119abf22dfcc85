"""What each engine makes of an artifact: rows a second of every build in every engine, in turns.

    python -m benchmarks.engines DENSE PRUNED … --rows FILE [--threads N] [--calibration FILE]

All are artifacts of one model; every engine that runs the task runs them in all its precisions.
Rows of FILE are cut or filled to a number of tokens; translators generate as many as they read.
All rows, as they are, are answered by every build, for its quality. Where NNCF is installed (the
extra `nncf`), OpenVINO also runs int8 graphs that NNCF makes of encoders' float32 ones, with the
activations of --calibration; one of the dense model is a dense build as any other. Results are
added to benchmarks/results/engines-TASK.json, a section for each processor, and drawn into
engines-TASK.md.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import pages
from compressor.errors import UsageError
from compressor.evaluation import score_rows
from compressor.runtime import collate
from compressor.runtime.engines import ENGINES
from compressor.runtime.opening import read_artifact
from compressor.runtime.runtime import Runtime
from compressor.tasks import TASKS, Rows, Task
from compressor.tasks.builds import Build, builds_of
from compressor.throughput.hardware import describe
from compressor.throughput.measure import measure
from compressor.throughput.statistics import against_dense, summarize
from compressor.throughput.workloads import make_workloads

Row = dict[str, Any]
Key = tuple[str, str, str]  # directory, engine, precision
# Rows and source tokens.
SHAPES = {
    "classification": ((1, 16), (16, 16), (64, 32), (16, 128)),
    "translation": ((1, 20), (16, 20), (64, 20)),
}
PRECISIONS = ("fp32", "int8", "bf16")
NNCF_ROWS = 300  # whose activations it sees at most
# A dense batch takes up to half a second.
RUNS: dict[str, Any] = {"warmup": 4, "min_runs": 12, "min_seconds": 1.0}


def builds(directory: Path, task: Task) -> list[Build]:
    """An artifact in every engine that serves it, and in every precision."""
    artifact, engines = read_artifact(directory), []
    for name in ENGINES:
        try:
            engine = task.engine(name)
        except UsageError:  # it runs no such models
            continue
        if not engine.dense_only:
            engines.append(name)
    offered = [task.engine(engine).precisions(directory, artifact) for engine in engines]
    names = [name for name in PRECISIONS if any(name in precisions for precisions in offered)]
    return builds_of(directory, artifact, engines, names)


def quantizes_with_nncf(task: Task) -> bool:
    """Whether NNCF is installed, and OpenVINO runs models of the task."""
    try:
        task.engine("openvino")
    except UsageError:
        return False
    return find_spec("nncf") is not None


def open_nncf(directory: Path, task: Task, threads: int, rows: Rows, work: Path) -> Runtime:
    """An encoder in OpenVINO, its float32 graph quantized by NNCF with activations of `rows`.

    Args:
        directory: an artifact.
        task: that it was made for.
        threads: of the session.
        rows: to quantize with.
        work: the directory to write a copy of the artifact to.
    """
    import onnx

    nncf = import_module("nncf")
    copy = work / directory.name
    shutil.copytree(directory, copy)
    (copy / "manifest.json").unlink()  # its graph is another one now
    path = copy / "onnx" / read_artifact(copy).file("model", "fp32")
    runtime = task.open(directory, threads=threads)
    artifact = runtime.artifact
    batches = [
        collate([tokens], artifact.pad_token_id, artifact.inputs)
        for tokens in runtime.encode(rows.sources, rows.pairs)
    ]
    quantized = nncf.quantize(
        onnx.load(path), nncf.Dataset(batches), model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(batches),
    )  # fmt: skip
    for beside in path.parent.glob(f"{path.name}*"):
        beside.unlink()
    onnx.save(quantized, path)
    return task.open(copy, engine="openvino", precision="fp32", threads=threads)


def timed(runtimes: dict[Key, Runtime], dense: str, rows: Rows) -> list[Row]:
    """A line for each build and shape.

    Args:
        dense: the directory of the dense builds.
    """
    reference = next(iter(runtimes.values()))
    artifact, task = reference.artifact, TASKS[reference.artifact.task]
    engines = {"\t".join(key): key[1] for key in runtimes}
    encoded = reference.encode(rows.sources, rows.pairs)

    def padded(rows: list[Any]) -> Any:
        return collate(rows, artifact.pad_token_id, artifact.inputs)

    qualities, lines = {}, []
    for key, runtime in runtimes.items():
        scored = score_rows(rows, task.answer(runtime, rows.sources, rows.pairs))
        qualities["\t".join(key)] = scored.metrics[task.main_metric]
    for size, tokens in SHAPES[task.name]:
        options: dict[str, Any] = {}
        if "--target-length" in task.options:  # it generates
            options["forced_length"] = tokens
        (load,) = make_workloads(encoded, [size], padded, lengths=tokens)
        loads = [load]
        runs: dict[str, Any] = {
            "\t".join(key): partial(runtime.compute, **options) for key, runtime in runtimes.items()
        }
        samples = measure(runs, loads, progress=print, **RUNS)
        dense_builds = [name for name in runs if name.split("\t")[0] == dense]
        timings = summarize(samples, loads, reference=dense_builds[0])
        for row in against_dense(timings, samples, loads, engines, dense_builds):
            name, engine, precision = row.variant.split("\t")
            lines.append({
                "model": name, "engine": engine, "version": task.engine(engine).version(),
                "precision": precision, "rows": size, "tokens": tokens,
                "quality": qualities[row.variant],
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
        columns = [f"{size} × {tokens}" for size, tokens in shapes]
        heads = ["model", "engine", "precision"]
        by_build: dict[tuple[str, ...], dict[tuple[int, int], Row]] = {}
        for row in rows:
            key = (row["model"], f"{row['engine']} {row['version']}", row["precision"])
            by_build.setdefault(key, {})[row["rows"], row["tokens"]] = row
        rates = [
            [*key, f"{found[shapes[0]]['quality']:.2f}"]
            + [f"{found[shape]['rows_per_second']:.0f}" for shape in shapes]
            for key, found in by_build.items()
        ]
        gains = [
            [*key, *(pages.with_interval(*found[shape]["fastest"]) for shape in shapes)]
            for key, found in by_build.items()
        ]
        lines += [
            f"{title}: rows a second, by batch (rows × tokens), and the task's main "
            "metric on all rows.", "",
            pages.markdown_table([*heads, "quality", *columns], "lllr", rates), "",
            "The same, times as fast as the fastest dense build of any engine, with 95 % "
            "intervals.", "",
            pages.markdown_table([*heads, *columns], "lllr", gains), "",
        ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = pages.arguments(__doc__)
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="ARTIFACT", help="dense first")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--calibration", type=Path, help="rows that NNCF quantizes with")
    args = parser.parse_args()
    first = read_artifact(args.artifacts[0])
    task, name = TASKS[first.task], f"engines-{first.task}"
    if quantizes_with_nncf(task) != (args.calibration is not None):
        parser.error(
            "--calibration is for NNCF, on encoders: give it where NNCF is installed, and else "
            "leave it out or install it with `pip install '.[nncf]'`"
        )
    known: dict[str, Any] = {"labels": first.labels, "languages": first.direction}
    runtimes: dict[Key, Runtime] = {
        (directory.name, build.engine, build.precision): task.open(
            directory, engine=build.engine, precision=build.precision, threads=args.threads
        )
        for directory in args.artifacts
        for build in builds(directory, task)
    }
    with tempfile.TemporaryDirectory() as work:
        if args.calibration:
            sample = task.read_rows(args.calibration, **known, limit=NNCF_ROWS)
            for directory in args.artifacts:
                runtimes[directory.name, "openvino", pages.NNCF] = open_nncf(
                    directory, task, args.threads, sample, Path(work)
                )
        texts = task.read_rows(args.rows, **known)
        rows = timed(runtimes, args.artifacts[0].name, texts)
    hardware, count = describe(), f"{args.threads} thread{'s' if args.threads > 1 else ''}"
    title = f"{hardware['cpu']}, {hardware.get('instructions', '')}, {count}, cpu"
    if "hide_avx512" in os.environ.get("LD_PRELOAD", ""):
        title += ", with AVX2 and nothing newer (benchmarks.hide_avx512)"
    path = pages.RESULTS / f"{name}.json"
    sections = pages.read_json(path, {}) | {title: rows}  # of other machines too
    pages.write_json(path, sections)
    pages.publish(name, draw(sections))


if __name__ == "__main__":
    main()
