"""A token classifier, or a model that answers questions, cut to several shares of its work.

    python -m benchmarks.token_tasks --model MODEL --calibration ROWS --test ROWS --output OUT
    python -m benchmarks.token_tasks ... --macs 0.5,0.25 --minutes 1

MODEL is what `benchmarks.finetune_heads` makes, ROWS are files of its task. Without --minutes only
output projections are solved again; with it each cut is distilled so long on the calibration rows.
The same command resumes a stopped run. The numbers go to benchmarks/results/TASK.json, the table
beside it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.pages import RESULTS, markdown_table, publish, with_interval
from compressor.commands.console import Console
from compressor.evaluation import METRICS
from compressor.pipeline.run import run
from compressor.request.recipe import make_recipe
from compressor.tasks import TASKS


def measure(args: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """Compress and measure: the task, and a row for each build."""
    options: dict[str, Any] = {"recover": "reconstruct"}
    if args.minutes is not None:
        options = {"recover": "reconstruct+distill", "distill_minutes": args.minutes}
    recipe = make_recipe(
        model=str(args.model),
        calibration=str(args.calibration),
        calibration_rows=args.rows,
        test=str(args.test),
        macs=args.macs,
        precision=["fp32,int8"],
        bench=False,
        **options,
    )
    report = run(recipe, args.output, progress=Console())
    found = []
    for build in (report.dense, *report.variants):
        assert build.quality is not None
        first = build.comparisons[0] if build.comparisons else None
        found.append({
            "distilled": args.minutes if build.family != "dense" else None,
            "macs": build.macs_share, "precision": build.precision,
            "metrics": build.quality.metrics, "rows": build.quality.rows,
            "difference": first and first.difference, "interval": first and first.interval,
        })  # fmt: skip
    return report.task, found


def table(task: str, rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each build, the main metric with its difference from the dense model."""
    names = TASKS[task].metrics
    lines = []
    for row in sorted(rows, key=lambda r: (r["distilled"] or 0, -r["macs"], r["precision"])):
        repair = "none" if row["macs"] == 1 else "without training"
        if row["distilled"] is not None:
            repair = f"distilled for {row['distilled']:g} min"
        values = [f"{row['metrics'][name]:.1f}" for name in names]
        if row["difference"] is not None:
            values[0] += f" ({with_interval(row['difference'], row['interval'], '+')})"
        lines.append([f"{row['macs']:.0%}", row["precision"], repair, *values])
    titles = ["multiply-adds", "precision", "repair", *(METRICS[name].label for name in names)]
    return markdown_table(titles, "rllr", lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "calibration", "test", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--macs", default="0.75,0.5,0.4,0.25")
    parser.add_argument("--rows", type=int, help="calibrate on the first N")
    parser.add_argument("--minutes", type=float, help="of distillation, each cut")
    args = parser.parse_args()
    task, rows = measure(args)
    path = RESULTS / f"{task}.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    new = {(row["distilled"], row["macs"], row["precision"]) for row in rows}
    rows += [r for r in kept if (r["distilled"], r["macs"], r["precision"]) not in new]
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    publish(task, table(task, rows))


if __name__ == "__main__":
    main()
