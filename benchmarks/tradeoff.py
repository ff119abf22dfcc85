"""Quality against measured speed: what users choose from, in fp32 and int8.

    python -m benchmarks.tradeoff translator --output OUT --data TATOEBA
    python -m benchmarks.tradeoff classifier --output OUT --data CLINC150 --model FINE_TUNED

Compresses a model to several shares of its multiply-adds with `compress run`, in both precisions,
and times every artifact in turns with the dense one. DATA holds valid.tsv (calibration) and
test.tsv. With --recover reconstruct+distill --distill-text FILE the repair also trains. The report
goes to benchmarks/results/tradeoff-NAME-RECOVER.json; table and figure are drawn from all reports
of the name. The same command resumes a stopped run; --draw computes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compressor.commands.console import Console
from compressor.pipeline.run import run
from compressor.report.plots import COLORS, plot_style
from compressor.report.schema import Report, load_report
from compressor.request import example
from compressor.request.recipe import Recipe, make_recipe
from compressor.results import Comparison, Timing, Variant
from compressor.tasks import TASKS

RESULTS = Path(__file__).parent / "results"
MACS = "0.9,0.8,0.7,0.6,0.5,0.4,0.3"
BATCHES = [16, 64]
LIMITS = (0.5, 1.0)  # points of the main metric
UNIT = {"translation": "BLEU", "classification": "accuracy, %"}


def recipe_of(args: argparse.Namespace) -> Recipe:
    options: dict[str, Any] = {
        "calibration": f"{args.data}/{args.calibration}",
        "test": f"{args.data}/test.tsv",
        "macs": args.macs,
        "precision": ["fp32,int8"],
        "recover": args.recover,
        "batch_size": BATCHES,
        "threads": args.threads,
        "calibration_rows": args.rows,
        "test_rows": args.test_rows,
        "bench_seconds": args.seconds,
        "distill_text": args.distill_text,
        "distill_epochs": args.epochs,
    }
    model = str(example.model()) if args.name == "translator" else args.model
    return make_recipe(model=model, **{k: v for k, v in options.items() if v is not None})


def main_comparison(report: Report, variant: Variant) -> Comparison:
    """Pruned (or dense in int8) against dense in fp32."""
    metric = TASKS[report.task].main_metric
    return next(c for c in variant.comparisons if c.metric == metric)


def timing(report: Report, name: str, batch: int) -> Timing:
    assert report.throughput is not None
    return next(
        row for row in report.throughput.rows if (row.variant, row.batch_size) == (name, batch)
    )


def table(reports: Sequence[Report], name: str) -> str:
    """Markdown: every artifact, then the fastest ones within each limit."""
    first = reports[0]
    assert first.throughput is not None
    metric = UNIT[first.task]
    lines = [
        f"{name}: {first.dense.parameters:,} parameters; {metric} on "
        f"{first.test.rows if first.test else 0:,} rows; {first.throughput.threads} threads, "
        f"{first.hardware.get('cpu', '')}. Speed-ups over dense fp32, timed in turns with it; "
        "a run for each repair.",
        "",
        f"| repair | model | {metric} | difference [95 %] | {_batches()} | limit | ONNX, MB |",
        "| --- | --- | ---: | ---: |" + " ---: |" * len(BATCHES) + " ---: | ---: |",
    ]  # fmt: skip
    for report in reports:
        for variant in report.variants:
            found = main_comparison(report, variant)
            low, high = found.interval
            speeds = [timing(report, variant.name, batch) for batch in BATCHES]
            limit = speeds[0].limit
            cells = [
                repair_of(variant), variant.name, f"{found.pruned:.2f}",
                f"{found.difference:+.2f} [{low:+.2f}, {high:+.2f}]",
                *(f"{s.speedup or 1:.2f}" for s in speeds),
                "–" if limit is None else f"{limit:.2f}", f"{variant.onnx_bytes / 1e6:.1f}",
            ]  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_fastest(reports), ""])


def _batches(prefix: str = "") -> str:
    return " | ".join(f"{prefix}batch {batch}" for batch in BATCHES)


def _fastest(reports: Sequence[Report]) -> list[str]:
    lines = [
        f"| at most lost | precision | {_batches('fastest at ')} |",
        "| ---: | --- |" + " --- |" * len(BATCHES),
    ]  # fmt: skip
    for limit in LIMITS:
        for precision in ("fp32", "int8"):
            cells = [_best(reports, limit, precision, batch) for batch in BATCHES]
            lines.append(f"| {limit:g} | {precision} | " + " | ".join(cells) + " |")
    return lines


def _best(reports: Sequence[Report], limit: float, precision: str, batch: int) -> str:
    found = [
        (timing(report, variant.name, batch).speedup or 1, variant.name, repair_of(variant))
        for report in reports
        for variant in report.variants
        if variant.precision == precision and main_comparison(report, variant).difference >= -limit
    ]
    if not found:
        return "–"
    speedup, name, repair = max(found)
    return f"{speedup:.2f} ({name}, {repair})"


def repair_of(variant: Variant) -> str:
    """`reconstruct+distill` of the report's sentence about the repair."""
    if variant.name.startswith("dense"):
        return "none"
    return "+".join(part.partition(":")[0] for part in variant.recovery.split("; then "))


def figure(reports: Sequence[Report], path: Path) -> None:
    """A panel per batch size: quality against speed-up, a line per repair and precision."""
    from matplotlib.figure import Figure

    with plot_style(path.stem):
        drawn = Figure(figsize=(5.2 * len(BATCHES), 4.2), layout="constrained")
        panels = drawn.subplots(1, len(BATCHES), sharey=True, squeeze=False)[0]
        for panel, batch in zip(panels, BATCHES, strict=True):
            _draw(panel, reports, batch)
            panel.set_title(f"batch {batch}", loc="left")
            panel.set_xlabel("times as fast as dense fp32, measured")
        panels[0].set_ylabel(UNIT[reports[0].task])
        panels[0].legend(loc="lower left")
        drawn.savefig(path, dpi=150, facecolor="white")


def _draw(panel: Any, reports: Sequence[Report], batch: int) -> None:
    metric = TASKS[reports[0].task].main_metric
    quality = reports[0].dense.quality
    assert quality is not None
    dense = quality.metrics[metric]
    panel.axhline(dense, color="#666666", linewidth=1, linestyle=":")
    panel.axhline(dense - LIMITS[-1], color="#bbbbbb", linewidth=1, linestyle="--")
    for place, report in enumerate(reports):
        for precision, marker, line in (("fp32", "o", "-"), ("int8", "s", "--")):
            points = sorted(
                (timing(report, v.name, batch).speedup or 1, main_comparison(report, v).pruned)
                for v in report.variants
                if v.precision == precision
            )
            if precision == "fp32":
                points.insert(0, (1.0, dense))
            repair = next(repair_of(v) for v in report.variants if not v.name.startswith("dense"))
            panel.plot(
                *zip(*points, strict=True),
                label=f"{precision}, {repair}",
                marker=marker,
                linestyle=line,
                color=COLORS[place % len(COLORS)],
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=["translator", "classifier"])
    parser.add_argument("--output", type=Path, help="directory of the run")
    parser.add_argument("--data", help="directory with the calibration rows and test.tsv")
    parser.add_argument("--calibration", default="valid.tsv", help="file in --data")
    parser.add_argument("--model", help="the fine-tuned classifier")
    parser.add_argument("--macs", default=MACS)
    parser.add_argument("--recover", default="reconstruct")
    parser.add_argument("--rows", type=int, default=2048, help="calibration rows")
    parser.add_argument("--test-rows", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each timing")
    parser.add_argument("--distill-text")
    parser.add_argument("--epochs", type=int, help="of distillation")
    parser.add_argument("--draw", action="store_true", help="only draw the table and the figure")
    args = parser.parse_args()
    if not args.draw:
        if not args.output or not args.data or (args.name == "classifier" and not args.model):
            parser.error("give --output, --data, and --model for the classifier; or --draw")
        run(recipe_of(args), args.output, "", Console())
        text = (args.output / "report.json").read_text(encoding="utf-8")
        for path in (str(args.output), str(args.data), args.model or str(example.model())):
            text = text.replace(path, Path(path).name)  # nothing of this machine's directories
        kept = RESULTS / f"tradeoff-{args.name}-{args.recover}.json"
        kept.write_text(text, encoding="utf-8")
    reports = [load_report(path) for path in sorted(RESULTS.glob(f"tradeoff-{args.name}-*.json"))]
    text = table(reports, args.name)
    (RESULTS / f"tradeoff-{args.name}.md").write_text(text, encoding="utf-8")
    figure(reports, RESULTS / f"tradeoff-{args.name}.png")
    print(text)


if __name__ == "__main__":
    main()
