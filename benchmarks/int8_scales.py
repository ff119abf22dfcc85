"""int8 with activation ranges from calibration rows, and with a scale per token: quality and speed.

    python -m benchmarks.int8_scales --classifier FINE_TUNED --clinc DIR

Both are exported from the dense model (the bundled translator, and the classifier if it is given;
DIR holds valid.tsv and test.tsv), evaluated on the test rows, and timed interleaved with fp32. The
last column counts the answers to the first rows that are others in batches of 1, 7 or 64. Results
are added to benchmarks/results/int8-scales.json, a section for each processor, and drawn into
int8-scales.md.
"""

from __future__ import annotations

import argparse
import tempfile
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
from compressor.commands.console import Console
from compressor.pipeline.compare_artifacts import bench_artifacts, evaluate_artifacts
from compressor.pipeline.single_steps import export_checkpoint
from compressor.request import example
from compressor.request.recipe import (
    BenchRequest,
    EvaluateRequest,
    ExportRequest,
    make_request,
)
from compressor.runtime import Classifier, Translator
from compressor.runtime.artifact import read_artifact
from compressor.tasks import TASKS

Row = dict[str, Any]
BATCHES = (1, 7, 64)
KINDS = {"a range, from calibration rows": True, "one per token": False}


def changed_answers(artifact: Path, texts: list[str]) -> int:
    """How many answers depend on the batch."""
    if read_artifact(artifact).task == "translation":
        translator = Translator(artifact, precision="int8", threads=1)
        answers = [translator.translate(texts, batch_size=size) for size in BATCHES]
    else:
        classifier = Classifier(artifact, precision="int8", threads=1)
        answers = [classifier.classify(texts, batch_size=size) for size in BATCHES]
    return sum(len(set(given)) > 1 for given in zip(*answers, strict=True))


def measure(
    name: str, model: str, calibration: str, test: str, args: argparse.Namespace
) -> list[Row]:
    """Rows of the table, for one model."""
    progress = Console()
    with tempfile.TemporaryDirectory() as directory:
        artifacts = []
        for number, ranged in enumerate(KINDS.values()):
            output = Path(directory, f"{name}-{number}")
            rows = {"calibration": calibration} if ranged else {}
            options = {"model": model, "precision": ["fp32", "int8"], **rows}
            export_checkpoint(make_request(ExportRequest, **options), output)
            artifacts.append(output)
        precisions = ["fp32", "int8"]
        data = {"test": test, "test_rows": args.test_rows}
        quality = evaluate_artifacts(
            artifacts, make_request(EvaluateRequest, **data), precisions, progress
        )
        sizes = ",".join(map(str, args.batch_size))
        request = make_request(BenchRequest, **data, batch_size=sizes, threads=args.threads)
        times = bench_artifacts(artifacts, request, precisions, progress)
        compared_rows = TASKS[read_artifact(artifacts[0]).task].read_rows(test, limit=args.changed)
        changed = [changed_answers(artifact, compared_rows.sources) for artifact in artifacts]
    found = []
    for number, kind in enumerate(KINDS):
        compared = quality[2 * number + 1].comparisons[0]
        timed = [row for row in times.rows if row.variant.endswith(f"{number}-int8")]
        found.append({
            "model": name, "scales": kind, "quality": compared.pruned,
            "difference": compared.difference, "interval": list(compared.interval),
            "speedups": {
                str(row.batch_size): [row.speedup or 0, *(row.speedup_interval or (0, 0))]
                for row in timed
            },
            "changed": changed[number], "compared": len(compared_rows.sources),
        })  # fmt: skip
    return found


def draw(found: dict[str, list[Row]]) -> str:
    """Markdown: a table for each processor."""
    lines = []
    for title, rows in found.items():
        sizes = [f"batch {size}" for size in rows[0]["speedups"]]
        head = ["model", "scales of activations", "quality", "against fp32", *sizes, "changed"]
        lines += [
            f"{title}: dense models, BLEU or accuracy, how many times as fast as fp32 with 95 % "
            "intervals, and answers that change with the batch.",
            "",
            markdown_table(head, "llr", map(_cells, rows)),
            "",
        ]
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    return [
        row["model"], row["scales"], f"{row['quality']:.2f}",
        with_interval(row["difference"], row["interval"], "+"),
        *(with_interval(ratio, ends) for ratio, *ends in row["speedups"].values()),
        f"{row['changed']} of {row['compared']}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classifier", help="the fine-tuned classifier")
    parser.add_argument("--clinc", help="CLINC150: valid.tsv, test.tsv")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--test-rows", type=int, help="default: all")
    parser.add_argument("--changed", type=int, default=200, help="rows to compare batches on")
    args = parser.parse_args()
    lines = measure("translator", str(example.model()), str(example.calibration()),
                    str(example.test()), args)  # fmt: skip
    if args.classifier and args.clinc:
        rows = [f"{args.clinc}/{name}.tsv" for name in ("valid", "test")]
        lines += measure("classifier", args.classifier, rows[0], rows[1], args)
    title = title_of(args.threads)
    text = draw(write_section(RESULTS / "int8-scales.json", title, lines))
    publish("int8-scales", text)


if __name__ == "__main__":
    main()
