"""Models of one number a row, cut to several shares of their multiply-adds, in every precision.

    python -m benchmarks.scores regression --model OUT --output DIR
    python -m benchmarks.scores reranking --model OUT --output DIR
    python -m benchmarks.scores embedding --model ENCODER --rows OUT --output DIR

OUT is what `python -m benchmarks.finetune_scores` wrote; the rows it did not train on, in OUT.work,
are tested on, and of those it trained on the first ones are calibrated on. The third command cuts a
sentence encoder, which ranks the same candidates by cosines (OUT.work is enough for it, as `python
-m benchmarks.finetune_scores reranking --split` writes it). Without --minutes only output
projections are re-solved; with it each cut is distilled so long on all rows of training, or with
--text on a file of unlabeled texts. Precisions are fp32, int8, and OpenVINO's bf16 where the
processor has it. The numbers go to benchmarks/results/scores.json, the table beside it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.pages import RESULTS, markdown_table, publish, with_interval
from compressor.commands.console import Console
from compressor.pipeline.run import run
from compressor.report.facts import metric_style
from compressor.request.recipe import make_recipe
from compressor.results import Variant
from compressor.tasks import TASKS

PRECISIONS = ("fp32", "int8", "bf16")
ENGINES = ("onnxruntime", "openvino")  # the second one in bf16, where the processor has that


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compress, and measure every build: a row each."""
    work = args.rows or args.model
    work = work.with_name(work.name + ".work")
    options: dict[str, Any] = {"recover": "reconstruct"}
    if args.minutes is not None:
        options = {"recover": "reconstruct+distill", "distill_minutes": args.minutes}
        options["distill_precision"] = args.distill_precision
        if args.text is None:
            args.calibration_rows = None
        else:
            options |= {"distill_text": str(args.text)}
    recipe = make_recipe(
        model=str(args.model),
        task=args.task,
        calibration=str(work / "train.tsv"),
        calibration_rows=args.calibration_rows,
        test=str(work / "test.tsv"),
        macs=args.macs,
        precision=[",".join(PRECISIONS[:2])],
        engines=",".join(ENGINES),
        bench=False,
        **options,
    )
    report = run(recipe, args.output, progress=Console())
    repair = "without training" if args.minutes is None else f"distilled {args.minutes:g} minutes"
    repair += "" if args.text is None else " from text"
    return [
        _row(args.task, variant, repair if variant.family != "dense" else "none")
        for variant in (report.dense, *report.variants)
        if variant.engine == ENGINES[0] or variant.precision == "bf16"
    ]


def _row(task: str, variant: Variant, repair: str) -> dict[str, Any]:
    assert variant.quality is not None
    return {
        "task": task, "macs": variant.macs_share, "precision": variant.precision, "repair": repair,
        "counted": variant.quality.rows, "metrics": variant.quality.metrics,
        "differences": {x.metric: [x.difference, *x.interval] for x in variant.comparisons},
    }  # fmt: skip


def _build(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["task"], row["repair"], row["macs"], row["precision"]


def table(rows: list[dict[str, Any]], task: str) -> str:
    """Markdown: a line for each build of a task's model, the most multiply-adds first."""
    mine = sorted(
        (row for row in rows if row["task"] == task),
        key=lambda row: (
            row["repair"].startswith("distilled"),
            -row["macs"],
            PRECISIONS.index(row["precision"]),
        ),
    )
    metrics = list(mine[0]["metrics"])
    lines = []
    for row in mine:
        cells = []
        for metric in metrics:
            value, change = f"{row['metrics'][metric]:.1f}", row["differences"].get(metric)
            cells.append(
                f"{value} ({with_interval(change[0], change[1:], '+')})" if change else value
            )
        lines.append([f"{row['macs']:.0%}", row["precision"], row["repair"], *cells])
    titles = ["multiply-adds", "precision", "repair", *(metric_style(m).label for m in metrics)]
    return markdown_table(titles, "rllr", lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("regression", "reranking", "embedding"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=Path, help="whose rows an encoder is measured on")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--macs", default="0.75,0.5,0.4,0.25")
    parser.add_argument("--calibration-rows", type=int, default=500)
    parser.add_argument("--minutes", type=float, help="of distillation, each cut")
    parser.add_argument("--text", type=Path, help="texts to distill from, a line each")
    parser.add_argument("--distill-precision", default="fp32")
    args = parser.parse_args()
    rows = measure(args)
    path = RESULTS / "scores.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    new = set(map(_build, rows))
    rows += [row for row in kept if _build(row) not in new]
    rows.sort(key=lambda row: [*TASKS].index(row["task"]))
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    publish(f"scores-{args.task}", table(rows, args.task))


if __name__ == "__main__":
    main()
