"""A model of any task but translation, cut to several shares of its work, in every precision.

    python -m benchmarks.tasks --model MODEL --calibration ROWS --test ROWS --output OUT
    python -m benchmarks.tasks ... --macs 0.5,0.25 --minutes 1
    python -m benchmarks.tasks ... --macs 0.3,0.2 --prune all
    python -m benchmarks.tasks --task embedding --model ENCODER ...

MODEL and the rows are what `benchmarks.finetune` makes (the last command: a sentence encoder on
the rows of a reranker). Without --minutes only output projections are solved again; with it each
cut is distilled so long on the calibration rows, or with --text on a file of unlabeled texts. With
--prune all tokens are removed, too.
Precisions are fp32, int8, and OpenVINO's bf16 where the processor has it. The same command resumes
a stopped run. The numbers go to benchmarks/results/tasks.json, the tables beside it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import pages
from compressor.report.facts import metric_style

PRECISIONS = ("fp32", "int8", "bf16")
ENGINES = ("onnxruntime", "openvino")  # the second one in bf16, where the processor has that
# Task -> its table, where that has another name: those that are compared by scores.
FILES = {name: f"scores-{name}" for name in ("embedding", "regression", "reranking")}


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compress, and measure every build: a row each."""
    options: dict[str, Any] = {"recover": "reconstruct"}
    recovery = "without training"
    if args.minutes is not None:
        options = {"recover": "reconstruct+distill", "distill_minutes": args.minutes}
        options["distill_precision"] = args.distill_precision
        recovery = f"distilled {args.minutes:g} minutes"
    if args.text is not None:
        options["distill_text"] = str(args.text)
        recovery += " from text"
    recovery += ", tokens" * (args.prune == "all")
    options |= {"model": str(args.model), "task": args.task, "macs": args.macs}
    options["prune"] = args.prune
    options |= {"calibration": str(args.calibration), "calibration_rows": args.calibration_rows}
    options |= {"precision": [",".join(PRECISIONS[:2])], "engines": ",".join(ENGINES)}
    report = pages.compress(args.output, test=str(args.test), bench=False, **options)
    rows = []
    for variant in (report.dense, *report.variants):
        if variant.engine == ENGINES[0] or variant.precision == "bf16":
            assert variant.quality is not None
            rows.append({
                "task": report.task, "macs": variant.macs_share, "precision": variant.precision,
                "repair": recovery if variant.family != "dense" else "none",
                "counted": variant.quality.rows, "metrics": variant.quality.metrics,
                "differences": {x.metric: [x.difference, *x.interval] for x in variant.comparisons},
            })  # fmt: skip
    return rows


def _build(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["task"], row["repair"], row["macs"], row["precision"]


def table(rows: list[dict[str, Any]], task: str) -> str:
    """Markdown: a line for each build of a task's model, the most multiply-adds first."""
    mine = sorted(
        (row for row in rows if row["task"] == task),
        key=lambda row: (
            row["repair"].startswith("distilled"),
            row["repair"].endswith("tokens"),
            -row["macs"],
            PRECISIONS.index(row["precision"]),
        ),
    )
    metrics = list(mine[0]["metrics"])
    lines = []
    for row in mine:
        cells = [pages.changed(row["metrics"][x], row["differences"].get(x)) for x in metrics]
        lines.append([f"{row['macs']:.0%}", row["precision"], row["repair"], *cells])
    titles = ["multiply-adds", "precision", "recovery", *(metric_style(m).label for m in metrics)]
    return pages.markdown_table(titles, "rllr", lines) + "\n"


def main() -> None:
    parser = pages.arguments(__doc__)
    parser.add_argument("--task", help="if not the usual one of the model")
    for name in ("model", "calibration", "test", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--macs", default="0.75,0.5,0.4,0.25")
    parser.add_argument(
        "--prune", choices=["both", "all"], default="both", help="heads and neurons; tokens too"
    )
    parser.add_argument("--calibration-rows", type=int, help="the first N")
    parser.add_argument("--minutes", type=float, help="of distillation, each cut")
    parser.add_argument("--text", type=Path, help="texts to distill from, a line each")
    parser.add_argument("--distill-precision", default="fp32")
    measured = measure(parser.parse_args())
    rows = pages.merge_rows(pages.RESULTS / "tasks.json", measured, _build)
    task = measured[0]["task"]
    pages.publish(FILES.get(task, task), table(rows, task))


if __name__ == "__main__":
    main()
