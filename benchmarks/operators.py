"""Where the time of graphs goes: by operator, in a dense and in a pruned model.

    python -m benchmarks.operators DENSE PRUNED [--rows N] [--tokens N] [--threads N]

Graphs of both run the same random batch with onnxruntime's profiler on, in turns; a decoder runs
one step, with 8 tokens in its cache. What a pruned model gains on products it cannot gain on
additions and normalization, whose width stays as it is: that is what keeps a measured speed-up
below the limit, which counts products alone. Results go to benchmarks/results/operators.json,
a section for each machine, and as tables to operators.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import onnxruntime

from benchmarks.optimizers import bound, feeds_of
from benchmarks.pages import RESULTS, markdown_table, publish, title_of, write_section
from compressor.runtime.artifact import GRAPH_DIRECTORY, read_artifact
from compressor.runtime.session import PROVIDERS, slower_optimizations

TURNS, RUNS = 5, 40
# What is shown together; operators that are named nowhere are "other".
KINDS = {
    "products": {"MatMul", "Gemm", "FusedGemm", "FusedMatMul", "MatMulIntegerToFloat"},
    "attention over a cache": {"GroupQueryAttention"},
    "additions": {"Add", "BiasGelu"},
    "normalization and softmax": {"LayerNormalization", "SkipLayerNormalization", "Softmax"},
    "moving": {"Transpose", "Reshape", "Split", "Slice", "Gather", "Concat", "Unsqueeze"},
}


def kind_of(operator: str) -> str:
    return next((kind for kind, named in KINDS.items() if operator in named), "other")


def profile(graph: Path, precision: str, args: argparse.Namespace) -> dict[str, list[float]]:
    """Kind of operator -> milliseconds of each run, summed over its nodes."""
    with tempfile.TemporaryDirectory() as directory:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = args.threads
        options.enable_profiling = True
        options.profile_file_prefix = f"{directory}/profile"
        session = onnxruntime.InferenceSession(
            str(graph), options, providers=[PROVIDERS["cpu"]],
            disabled_optimizers=list(slower_optimizations("cpu", precision)),
        )  # fmt: skip
        binding = bound(session, feeds_of(session, 1000, args.rows, args.tokens))
        for _ in range(RUNS):
            session.run_with_iobinding(binding)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    nodes: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            operator = event["args"]["op_name"]
            nodes[kind_of(operator), event["name"]].append(event["dur"] / 1000)
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * (RUNS - RUNS // 4))
    for (kind, _), times in nodes.items():
        warm = times[RUNS // 4 :]
        found[kind] = [a + b for a, b in zip(found[kind], warm, strict=True)]
    return found


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each kind of operator: median milliseconds of the dense and the pruned graph."""
    rows = []
    files = read_artifact(args.dense).precisions
    graphs = [
        (precision, role)
        for precision in args.precision
        for role in ("model", "encoder", "decoder")
        if role in files[precision]
    ]
    for precision, role in graphs:
        spent: dict[Path, dict[str, list[float]]] = {args.dense: {}, args.pruned: {}}
        for turn in range(TURNS):
            for directory in list(spent)[:: 1 if turn % 2 else -1]:
                name = read_artifact(directory).precisions[precision][role]
                graph = directory / GRAPH_DIRECTORY / name
                for kind, times in profile(graph, precision, args).items():
                    spent[directory].setdefault(kind, []).extend(times)
        rows += [
            {
                "precision": precision, "graph": role, "kind": kind,
                "dense": median(spent[args.dense][kind]),
                "pruned": median(spent[args.pruned].get(kind, [0.0])),
            }
            for kind in sorted(spent[args.dense], key=lambda k: -median(spent[args.dense][k]))
        ]  # fmt: skip
    return rows


def draw(found: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: a table for each machine and shape."""
    lines = []
    for title, rows in found.items():
        cells = []
        for precision, graph in dict.fromkeys((row["precision"], row["graph"]) for row in rows):
            chosen = [row for row in rows if (row["precision"], row["graph"]) == (precision, graph)]
            total = {"kind": "all"} | {k: sum(r[k] for r in chosen) for k in ("dense", "pruned")}
            for row in (*chosen, total):
                ratio = f"{row['dense'] / row['pruned']:.2f}" if row["pruned"] else "–"
                times = [f"{row['dense']:.2f}", f"{row['pruned']:.2f}", ratio]
                cells.append([precision, graph, row["kind"], *times])
        titles = ["precision", "graph", "operators", "dense, ms", "pruned, ms", "times"]
        lines += [f"{title}.", "", markdown_table(titles, "lllr", cells), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dense", type=Path)
    parser.add_argument("pruned", type=Path)
    parser.add_argument("--precision", nargs="+", default=["fp32", "int8"])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    title = (
        f"{args.pruned.name}, {args.rows} rows of {args.tokens} tokens, {title_of(args.threads)}"
    )
    text = draw(write_section(RESULTS / "operators.json", title, measure(args)))
    publish("operators", text)


if __name__ == "__main__":
    main()
