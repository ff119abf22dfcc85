"""Which of onnxruntime's graph optimizations change our graphs, and what each is worth.

    python -m benchmarks.optimizers ARTIFACT [ARTIFACT …] [--threads N] [--device cuda]

Each graph of each artifact is opened with all optimizations, and once without each of them. Those
that leave the graph as it is are dropped; the others are timed in turns with the full set, on the
same random batch. A ratio above 1 says that the graph is faster without the optimization. Results
are added to benchmarks/results/optimizers.json, a section for each processor, and drawn into
optimizers.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.pages import (
    RESULTS,
    markdown_table,
    publish,
    title_of,
    with_interval,
    write_section,
)
from compressor.runtime.artifact import GRAPH_DIRECTORY, read_artifact
from compressor.runtime.decoder import CAPACITY, writes_in_place
from compressor.runtime.in_place import FIRST_LENGTH
from compressor.runtime.session import PROVIDERS, open_session

# Names of graph transformers in onnxruntime 1.31 that could concern a transformer model.
NAMES = (
    "AttentionFusion", "Avx2WeightS8ToU8Transformer", "BiasDropoutFusion", "BiasGeluFusion",
    "BiasSkipLayerNormFusion", "BiasSoftmaxFusion", "CastChainElimination",
    "CommonSubexpressionElimination", "ConstantFolding", "ConstantSharing", "DivMulFusion",
    "DynamicQuantizeMatMulFusion", "EliminateIdentity", "EliminateSlice",
    "EmbedLayerNormFusion", "ExpandElimination", "FastGeluFusion",
    "FuseFp16InitializerToFp32NodeTransformer", "GatherSliceToSplitFusion",
    "GatherToSliceFusion", "GatherToSplitFusion", "GeluFusionL1", "GeluFusionL2",
    "GemmActivationFusion", "GemmSumFusion", "GemmTransposeFusion", "LayerNormFusionL1",
    "LayerNormFusionL2", "MatMulActivationFusion", "MatMulAddFusion",
    "MatMulIntegerToFloatFusion", "MatMulScaleFusion", "MatmulTransposeFusion",
    "NchwcTransformer", "NhwcTransformer", "NotWhereFusion", "PreShapeNodeElimination",
    "QDQFinalCleanupTransformer", "QDQPropagationTransformer", "QDQS8ToU8Transformer",
    "QDQSelectorActionTransformer", "QuickGeluFusion", "RemoveDuplicateCastTransformer",
    "ReshapeFusion", "SimplifiedLayerNormFusion", "SkipLayerNormFusion", "TransposeOptimizer",
    "UnsqueezeElimination",
)  # fmt: skip
ROWS, TOKENS, PAST = 16, 20, 8
ROUNDS = 60


def nodes(graph: Path, without: list[str], device: str) -> Counter[str]:
    """How many nodes of each operator onnxruntime runs."""
    with tempfile.TemporaryDirectory() as directory:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = f"{directory}/optimized.onnx"
        onnxruntime.InferenceSession(
            str(graph), options, providers=[PROVIDERS[device]], disabled_optimizers=without
        )
        model = onnx.load(options.optimized_model_filepath, load_external_data=False)
    return Counter(node.op_type for node in model.graph.node)


def feeds_of(
    session: onnxruntime.InferenceSession, vocabulary: int, rows: int = ROWS, tokens: int = TOKENS
) -> dict[str, np.ndarray[Any, Any]]:
    """A random batch; sizes follow from the names of the dynamic dimensions."""
    rng = np.random.default_rng(0)
    sizes = {"batch": rows, "source": tokens, "past": PAST, CAPACITY: FIRST_LENGTH}
    found = {}
    for value in session.get_inputs():
        shape = [x if isinstance(x, int) else sizes[x] for x in value.shape]
        if value.name == "position":
            found[value.name] = np.array([PAST])
        elif value.name == "attention_mask":
            found[value.name] = np.ones(shape, np.int64)
        elif value.type == "tensor(int64)":
            top = 2 if value.name == "token_type_ids" else vocabulary
            found[value.name] = rng.integers(0, top, shape)
        else:
            kind = np.float16 if value.type == "tensor(float16)" else np.float32
            found[value.name] = rng.standard_normal(shape).astype(kind)
    return found


def bound(session: onnxruntime.InferenceSession, feeds: dict[str, Any]) -> onnxruntime.IOBinding:
    """Inputs and outputs of a run; caches that a decoder writes in place are both."""
    binding = session.io_binding()
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(array) for n, array in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        past = values.get(output.name.replace("present", "past"))
        if past is not None and writes_in_place(session):
            binding.bind_ortvalue_output(output.name, past)
        else:
            binding.bind_output(output.name)
    return binding


def compare(
    sessions: dict[str, onnxruntime.InferenceSession], vocabulary: int
) -> dict[str, tuple[float, float, float]]:
    """Name -> times as fast as `all`: median and quartiles over rounds that run every session."""
    feeds = feeds_of(sessions["all"], vocabulary)
    bindings = {name: bound(session, feeds) for name, session in sessions.items()}
    spent: dict[str, list[float]] = {name: [] for name in sessions}
    names = list(sessions)
    for turn in range(ROUNDS + 5):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            began = time.perf_counter()
            sessions[name].run_with_iobinding(bindings[name])
            if turn >= 5:  # warm
                spent[name].append(time.perf_counter() - began)
    found = {}
    for name in names[1:]:
        ratios = [a / b for a, b in zip(spent["all"], spent[name], strict=True)]
        low, high = np.quantile(ratios, [0.25, 0.75])
        found[name] = (median(ratios), float(low), float(high))
    return found


def measure(directory: Path, device: str, threads: int) -> list[dict[str, Any]]:
    artifact = read_artifact(directory)
    vocabulary = getattr(artifact, "vocab_size", None) or 1000
    rows = []
    for precision, files in artifact.precisions.items():
        for role in files.keys() & {"model", "encoder", "decoder"}:
            graph = directory / GRAPH_DIRECTORY / files[role]
            full = nodes(graph, [], device)
            changing = [name for name in NAMES if nodes(graph, [name], device) != full]
            sessions = {"all": open_session(graph, device, threads)}
            for name in changing:
                sessions[name] = open_session(graph, device, threads, without=[name])
            for name, ratio in compare(sessions, vocabulary).items():
                rows.append({
                    "artifact": directory.name, "precision": precision, "graph": role,
                    "without": name, "ratio": [round(x, 3) for x in ratio],
                })  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def draw(found: dict[str, Any]) -> str:
    """Markdown: a table for each processor."""
    lines = []
    titles = ["artifact", "precision", "graph", "without", "times as fast"]
    for title, rows in found.items():
        rows = sorted(rows, key=lambda row: (row["without"], row["artifact"]))
        cells = [
            [*(row[name] for name in titles[:-1]), with_interval(row["ratio"][0], row["ratio"][1:])]
            for row in rows
        ]
        lines += [
            f"{title}; {ROWS} rows of {TOKENS} tokens, decoders with {PAST} in the cache; times as "
            "fast without the optimization, median and quartiles.",
            "",
            markdown_table(titles, "llllr", cells),
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifacts", type=Path, nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    rows = []
    for directory in args.artifacts:
        rows += measure(directory, args.device, args.threads)
    title = title_of(args.threads, args.device)
    text = draw(write_section(RESULTS / "optimizers.json", title, rows))
    publish("optimizers", text)


if __name__ == "__main__":
    main()
