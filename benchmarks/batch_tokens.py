"""How many tokens a batch should have: seconds of `Classifier.logits` at several budgets.

    python -m benchmarks.batch_tokens ARTIFACT [ARTIFACT …] --rows FILE [--threads 1 2]

Every artifact classifies the texts of FILE (a table that `compress` reads) once per repetition and
budget, budgets in turn; the figures are medians, relative to 1,024 tokens. Results are added to
benchmarks/results/batch-tokens.json, a section for each artifact and processor, and drawn into
batch-tokens.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pages import RESULTS, markdown_table, publish, title_of, write_section
from compressor.runtime import Classifier
from compressor.tasks import TASKS

Row = dict[str, Any]
BUDGETS = (64, 128, 256, 512, 1024, 2048)
REFERENCE = 1024


def seconds(classifier: Classifier, texts: list[str], repetitions: int) -> dict[int, list[float]]:
    """Times of each budget, one repetition of all after the other; the first one warms up."""
    times: dict[int, list[float]] = {budget: [] for budget in BUDGETS}
    for repetition in range(repetitions + 1):
        for budget in BUDGETS:
            began = time.perf_counter()
            classifier.logits(texts, batch_tokens=budget)
            if repetition:
                times[budget].append(time.perf_counter() - began)
    return times


def measured(
    artifact: Path, precision: str, threads: int, texts: list[str], repetitions: int
) -> Row:
    """A line of the table: how many times as fast each budget is as 1,024 tokens."""
    classifier = Classifier(artifact, precision=precision, threads=threads)
    times = seconds(classifier, texts, repetitions)
    ratios = {
        str(budget): median(r / s for r, s in zip(times[REFERENCE], taken, strict=True))
        for budget, taken in times.items()
    }
    rate = len(texts) / median(times[REFERENCE])
    return {
        "artifact": artifact.name, "precision": precision, "texts": len(texts),
        "median_tokens": median(map(len, classifier.encode(texts))),
        "texts_per_second": rate, "speedup": ratios,
    }  # fmt: skip


def table(rows: list[Row]) -> str:
    """Markdown: a line per artifact and precision, a column per budget."""
    heads = ["artifact", "precision", "tokens a text", "texts/s at 1,024", *map(str, BUDGETS)]
    cells = [
        [
            row["artifact"], row["precision"], f"{row['median_tokens']:.0f}",
            f"{row['texts_per_second']:.0f}", *(f"{x:.2f}" for x in row["speedup"].values()),
        ]
        for row in rows
    ]  # fmt: skip
    return markdown_table(heads, "llr", cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifacts", nargs="+", type=Path)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--limit", type=int, default=512, help="texts")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    texts = list(TASKS["classification"].read_rows(args.rows, limit=args.limit).sources)
    found: dict[str, list[Row]] = {}
    for threads in args.threads:
        rows = [
            measured(artifact, precision, threads, texts, args.repetitions)
            for artifact in args.artifacts
            for precision in ("fp32", "int8")
        ]
        path = RESULTS / "batch-tokens.json"
        found = write_section(path, title_of(threads), rows)
    text = "\n".join(f"{title}:\n\n{table(rows)}\n" for title, rows in found.items())
    publish("batch-tokens", text)


if __name__ == "__main__":
    main()
