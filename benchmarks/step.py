"""Where the time of a translation goes: the encoder, the decoder's graph, and our Python around it.

    python -m benchmarks.step ARTIFACT … [--precision fp32 int8] [--tokens N] [--threads N]

Every artifact translates random batches, each row into so many tokens, in turns. The time inside of
onnxruntime is measured around its calls; what is left of the translation is Python: choosing
tokens, keeping the batch, binding. Results go to benchmarks/results/step.json, a section for each
machine, and as tables to step.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.pages import RESULTS, markdown_table, publish, title_of, write_section
from compressor.runtime import Translator
from compressor.runtime.artifact import read_artifact

BATCHES = (1, 16, 64)
LENGTH = 12  # tokens that every row is translated into: the mean of real translations
SECONDS = 4.0  # for each artifact, precision and batch size


class Timed:
    """A session that notes how long its runs take."""

    def __init__(self, session: Any) -> None:
        self.session, self.seconds = session, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        began = time.perf_counter()
        self.session.run_with_iobinding(binding, options)
        self.seconds += time.perf_counter() - began


class Watched:
    """A translator whose sessions are timed."""

    def __init__(self, directory: Path, precision: str, threads: int) -> None:
        self.name, self.precision = directory.name, precision
        self.translator: Any = Translator(directory, precision=precision, threads=threads)
        self.encoder = self.translator._encoder = Timed(self.translator._encoder)
        graph = self.translator._decoder
        self.decoder = graph.session = Timed(graph.session)

    def translate(self, batch: dict[str, Any]) -> tuple[float, float, float]:
        """Milliseconds: the encoder's, and of each token the decoder graph's and the rest."""
        self.encoder.seconds = self.decoder.seconds = 0.0
        began = time.perf_counter()
        self.translator.generate(batch, forced_length=LENGTH)
        rest = time.perf_counter() - began - self.encoder.seconds - self.decoder.seconds
        of_steps = (self.decoder.seconds / LENGTH, rest / LENGTH)
        return 1e3 * self.encoder.seconds, 1e3 * of_steps[0], 1e3 * of_steps[1]


def measure(watched: list[Watched], tokens: int) -> list[dict[str, Any]]:
    """A row for each batch size and translator: medians, in milliseconds."""
    rng, rows = np.random.default_rng(0), []
    for size in BATCHES:
        ids = rng.integers(10, 1000, (size, tokens))
        batch = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        for one in watched:  # warm-up
            one.translate(batch)
        times: list[list[tuple[float, float, float]]] = [[] for _ in watched]
        end = time.perf_counter() + SECONDS * len(watched)
        while time.perf_counter() < end:
            for one, found in zip(watched, times, strict=True):
                found.append(one.translate(batch))
        for one, found in zip(watched, times, strict=True):
            encoder, step, python = (median(column) for column in zip(*found, strict=True))
            total = encoder + LENGTH * (step + python)
            rows.append(
                {
                    "model": one.name, "precision": one.precision, "batch": size,
                    "encoder": encoder, "step": step, "python": python,
                    "python_share": LENGTH * python / total, "total": total,
                }
            )  # fmt: skip
    return rows


def draw(found: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: a table for each machine."""
    titles = [
        "model", "precision", "batch", "translation, ms", "encoder, ms", "graph of a step, ms",
        "Python of a step, ms", "share of Python",
    ]  # fmt: skip
    lines = []
    for title, rows in found.items():
        cells = [
            [
                row["model"], row["precision"], str(row["batch"]), f"{row['total']:.1f}",
                f"{row['encoder']:.2f}", f"{row['step']:.3f}", f"{row['python']:.3f}",
                f"{row['python_share']:.0%}",
            ]
            for row in rows
        ]  # fmt: skip
        lines += [f"{title}.", "", markdown_table(titles, "llr", cells), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifacts", type=Path, nargs="+")
    parser.add_argument("--precision", nargs="+", default=["fp32", "int8"])
    parser.add_argument("--tokens", type=int, default=12, help="of every source")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    watched = [
        Watched(directory, precision, args.threads)
        for directory in args.artifacts
        for precision in args.precision
        if precision in read_artifact(directory).precisions
    ]
    title = f"{LENGTH} tokens from sources of {args.tokens}, greedy, {title_of(args.threads)}"
    text = draw(write_section(RESULTS / "step.json", title, measure(watched, args.tokens)))
    publish("step", text)


if __name__ == "__main__":
    main()
