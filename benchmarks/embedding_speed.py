"""Texts a second of sentence encoders, beside sentence-transformers and its other backends.

    PYTHONPATH=. .venv-optimum/bin/python -m benchmarks.embedding_speed --model ENCODER \
      --optimum DENSE --texts FILE ARTIFACT …

ENCODER is the dense checkpoint, DENSE its export with `--layout optimum`, and the artifacts are
what `compress export` or `compress run` made, dense or pruned. The environment is the one of
`make test-optimum`, with `pip install optimum-intel`. All programs embed the same texts (a line
each) on one thread, in turns, in one call with the batches of their defaults. Results go to
benchmarks/results/embedding-speed.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import markdown_table, publish, title_of
from compressor.runtime import Embedder
from compressor.runtime.artifact import read_artifact
from compressor.runtime.engines import engine_class

ROUNDS = 5
Embed = Callable[[Sequence[str]], Any]


def of_sentence_transformers(model: str, optimum: str) -> dict[tuple[str, str], Embed]:
    """(program, precision) -> what embeds, by each of its backends."""
    import onnxruntime
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    onnx = {"provider": "CPUExecutionProvider", "session_options": options}
    openvino = {"INFERENCE_NUM_THREADS": "1"}

    def embed(model: Any) -> Embed:
        return lambda texts: model.encode(list(texts), show_progress_bar=False)

    name = "sentence-transformers"
    found = {
        (f"{name}, PyTorch", "fp32"): SentenceTransformer(model, device="cpu"),
        (f"{name}, ONNX", "fp32"): SentenceTransformer(optimum, backend="onnx", model_kwargs=onnx),
    }
    for precision, hint in (("fp32", "f32"), ("bf16", "bf16")):
        found[f"{name}, OpenVINO", precision] = SentenceTransformer(
            model, backend="openvino",
            model_kwargs={"ov_config": openvino | {"INFERENCE_PRECISION_HINT": hint}},
        )  # fmt: skip
    return {names: embed(model) for names, model in found.items()}


def of_artifact(directory: Path) -> dict[tuple[str, str], Embed]:
    """(engine, precision) -> what embeds."""
    artifact = read_artifact(directory)
    found: dict[tuple[str, str], Embed] = {}
    for engine in ("onnxruntime", "openvino"):
        for precision in engine_class(engine).precisions(directory, artifact):
            model = Embedder(directory, engine=engine, precision=precision, threads=1)
            found[f"compress, {engine}", precision] = model.embed
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("artifacts", nargs="+", type=Path, metavar="ARTIFACT")
    parser.add_argument("--model", required=True)
    parser.add_argument("--optimum", required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=512)
    args = parser.parse_args()
    texts = args.texts.read_text(encoding="utf-8").splitlines()[: args.rows]
    ways = {
        ("dense", *names): embed
        for names, embed in of_sentence_transformers(args.model, args.optimum).items()
    }
    for directory in args.artifacts:
        ways |= {(directory.name, *names): way for names, way in of_artifact(directory).items()}
    seconds: dict[tuple[str, str, str], list[float]] = {way: [] for way in ways}
    for number in range(ROUNDS + 1):
        for way, embed in ways.items():
            began = time.perf_counter()
            embed(texts)
            if number:  # the first round warms up
                seconds[way].append(time.perf_counter() - began)
    first = seconds[next(iter(ways))]
    lines = []
    for way, taken in seconds.items():
        gains = [one / other for one, other in zip(first, taken, strict=True)]
        lines.append([
            *way, f"{len(texts) / statistics.median(taken):.0f}",
            f"{statistics.median(gains):.2f} [{min(gains):.2f}, {max(gains):.2f}]",
        ])  # fmt: skip
    titles = ["model", "program", "precision", "texts/s", "times as fast as PyTorch"]
    publish(
        "embedding-speed",
        f"{title_of(1)}: {len(texts)} texts in one call, median and range of {ROUNDS} rounds in "
        f"turns.\n\n{markdown_table(titles, 'lllr', lines)}\n",
    )


if __name__ == "__main__":
    main()
