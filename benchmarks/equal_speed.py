"""Which budget loses least at the same measured speed: multiply-adds, time, or whole layers.

    python -m benchmarks.equal_speed --tatoeba DIR --work DIR [--epochs 4 --distill-text FILE]

Compresses the bundled translator by several rules, to several sizes each: a share of the
multiply-adds (`--macs`), measured time at batch 1 and at batch 16 (`--speedup`), and a share of the
multiply-adds after whole layers went (`--drop-layers`). Each is a `compress run` with the repair
`reconstruct`, or with distillation after it; quality is that of the artifact, and its speed is
timed in turns with the dense model's. Results go to benchmarks/results/equal-speed*.json and .md.
The same command resumes a stopped one; --draw computes nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages import RESULTS, markdown_table, publish, with_interval
from compressor.commands.console import Console
from compressor.pipeline.run import run
from compressor.report.schema import Report
from compressor.request import example
from compressor.request.recipe import make_recipe
from compressor.results import Comparison, Variant
from compressor.tasks import TASKS

BATCHES = (1, 16)
MACS = "0.9,0.8,0.7,0.6,0.5"
SPEEDUPS = {1: (1.1, 1.25, 1.4), 16: (1.15, 1.3, 1.5)}
DROPS = ("encoder=1", "decoder=1", "encoder=1,decoder=1", "decoder=2")
DROP_MACS = "0.8,0.7,0.6,0.5"
DISTILLED: Mapping[str, Mapping[str, Any]] = {
    "--macs": {"macs": "0.5"},
    **{f"--drop-layers {x}": {"macs": "0.5", "drop_layers": x} for x in DROPS},
}


def settings(distilled: bool) -> dict[str, dict[str, Any]]:
    """Rule -> options of the runs that show it."""
    if distilled:
        return {name: dict(options) for name, options in DISTILLED.items()}
    found: dict[str, dict[str, Any]] = {"--macs": {"macs": MACS}}
    for batch, wanted in SPEEDUPS.items():
        for speedup in wanted:
            name = f"--speedup {speedup:g} --at-batch {batch}"
            found[name] = {"speedup": speedup, "at_batch": batch}
    for layers in DROPS:
        found[f"--drop-layers {layers}"] = {"macs": DROP_MACS, "drop_layers": layers}
    return found


def measure(
    args: argparse.Namespace, name: str, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """One run; a row for each of its artifacts."""
    common: dict[str, Any] = {
        "calibration": f"{args.tatoeba}/valid.tsv",
        "test": f"{args.tatoeba}/test.tsv",
        "recover": "reconstruct",
        "batch_size": list(BATCHES),
        "threads": 1,
        "bench_seconds": 3.0,
    }
    if args.epochs:
        common |= {
            "recover": "reconstruct+distill",
            "distill_text": args.distill_text,
            "distill_epochs": args.epochs,
        }
    directory = args.work / f"{name.strip('-').replace(' ', '-')}{_ending(args)}"
    recipe = make_recipe(model=str(example.model()), **common, **options)
    report = run(recipe, directory, "", Console())
    return [row_of(report, name, variant) for variant in report.variants]


def row_of(report: Report, name: str, variant: Variant) -> dict[str, Any]:
    assert report.throughput is not None
    found: Comparison = next(
        x for x in variant.comparisons if x.metric == TASKS[report.task].main_metric
    )
    timed = {row.batch_size: row for row in report.throughput.rows if row.variant == variant.name}
    return {
        "rule": name,
        "budget": variant.budget,
        "macs": variant.macs_share,
        "dropped": variant.dropped_layers,
        "heads": sum(map(len, variant.kept.values())),
        "neurons": sum(variant.kept_neurons.values()),
        "quality": found.pruned,
        "difference": found.difference,
        "interval": found.interval,
        "speedup": {batch: timed[batch].speedup for batch in BATCHES},
        "speedup_interval": {batch: timed[batch].speedup_interval for batch in BATCHES},
        "cpu": report.hardware.get("cpu", ""),
        "rows": report.test.rows if report.test else 0,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: every artifact, with its speed beside its quality."""
    first = rows[0]
    titles = ["rule", "budget", "heads", "neurons", "multiply-adds", "BLEU, difference [95 %]"]
    cells = [
        [
            f"`{row['rule']}`", row["budget"], f"{row['heads']}", f"{row['neurons']:,}",
            f"{100 * row['macs']:.0f} %", with_interval(row["difference"], row["interval"], "+"),
            *(f"{row['speedup'][str(batch)]:.2f}" for batch in BATCHES),
        ]
        for row in rows
    ]  # fmt: skip
    about = (
        f"The bundled translator in fp32, {first['rows']:,} test rows, one thread, "
        f"{first['cpu']}; times as fast as the dense model at batch 1 and 16, timed in turns."
    )
    speeds = [f"batch {batch}" for batch in BATCHES]
    return f"{about}\n\n{markdown_table([*titles, *speeds], 'llr', cells)}\n"


def _ending(args: argparse.Namespace) -> str:
    return "-distilled" if args.epochs else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tatoeba", help="sentence pairs: valid.tsv, test.tsv")
    parser.add_argument("--work", type=Path, help="directory of the runs")
    parser.add_argument("--only", default="", help="rules that have this in their name")
    parser.add_argument("--epochs", type=int, default=0, help="of distillation")
    parser.add_argument("--distill-text", help="sentences for it")
    parser.add_argument("--draw", action="store_true", help="only draw the table")
    args = parser.parse_args()
    path = RESULTS / f"equal-speed{_ending(args)}.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if not args.draw:
        if not args.tatoeba or not args.work:
            parser.error("give --tatoeba and --work, or --draw")
        for name, options in settings(bool(args.epochs)).items():
            if args.only in name and not any(row["rule"] == name for row in rows):
                rows += json.loads(json.dumps(measure(args, name, options)))
                path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    publish(path.stem, table(rows))


if __name__ == "__main__":
    main()
