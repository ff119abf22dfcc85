"""Compress one checkpoint to several budgets, write table and plots for docs/results.md.

    python -m benchmarks.tables translator --output OUT [--test TATOEBA/test.tsv]
    python -m benchmarks.tables classifier --output OUT --model FINE_TUNED --data CLINC150

The table goes to benchmarks/results/NAME.md and .json, the plots beside it. Train the classifier
with benchmarks/finetune_minilm.py first. The same command resumes a stopped run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.pages import RESULTS, markdown_table, publish, with_interval
from compressor.commands.console import Console
from compressor.pipeline.run import run
from compressor.report.plots import save_plots
from compressor.report.schema import Report
from compressor.request import example
from compressor.request.recipe import Recipe, make_recipe
from compressor.results import Variant
from compressor.tasks import TASKS

KEEP = ["1.0", "0.8", "0.6", "0.4"]
BATCHES = [1, 16, 64]
METRIC_TITLES = {"bleu": "BLEU"}


def recipe_of(args: argparse.Namespace) -> Recipe:
    if args.name == "translator":
        return make_recipe(
            model=str(example.model()),
            calibration=str(example.calibration()),
            test=args.test or str(example.test()),
            keep=KEEP,
            batch_size=BATCHES,
            method=args.method,
            recover=args.recover,
        )
    return make_recipe(
        model=args.model,
        calibration=f"{args.data}/valid.tsv",
        test=f"{args.data}/test.tsv",
        calibration_rows=1024,
        keep=KEEP,
        batch_size=BATCHES,
        method=args.method,
        recover=args.recover,
    )


def table(report: Report) -> str:
    """Markdown: quality with its interval, size, and sentences per second with speed-ups."""
    metric = TASKS[report.task].main_metric
    heads = [f"sent/s, batch {b}" for b in BATCHES]
    columns = [
        "heads kept",
        METRIC_TITLES.get(metric, metric),
        "difference",
        "parameters",
        "checkpoint MB",
        "ONNX MB",
        *heads,
    ]
    models = (report.dense, *report.variants)
    return markdown_table(columns, "l", [cells(report, model, metric) for model in models])


def cells(report: Report, model: Variant, metric: str) -> list[str]:
    kept = sum(len(heads) for heads in model.kept.values())
    assert model.quality is not None
    compared = next((c for c in model.comparisons if c.metric == metric), None)
    difference = "–"
    if compared is not None:
        difference = with_interval(compared.difference, compared.interval, "+")
    row = [
        "all (dense)" if model is report.dense else f"{kept} of {sum(model.heads.values())}",
        f"{model.quality.metrics[metric]:.2f}",
        difference,
        f"{model.parameters / 1e6:.2f} M",
        f"{model.checkpoint_bytes / 1e6:.1f}",
        f"{model.onnx_bytes / 1e6:.1f}",
    ]
    assert report.throughput is not None
    for timing in report.throughput.rows:
        if timing.variant == model.name:
            text = f"{timing.sentences_per_second:.0f}"
            if timing.speedup is not None and timing.macs_ratio is not None:
                text += f" ({timing.speedup:.2f}x, multiply-adds {timing.macs_ratio:.2f}x)"
            row.append(text)
    return row


def without_paths(report: Report) -> Report:
    """The report with file names instead of the paths of this machine."""

    def named(variant: Variant) -> Variant:
        return variant.model_copy(update={"directory": variant.name})

    sources = {
        which: source.model_copy(update={"files": [Path(file).name for file in source.files]})
        for which, source in (("calibration", report.calibration), ("test", report.test))
        if source is not None
    }
    models = {"dense": named(report.dense), "variants": [named(v) for v in report.variants]}
    return report.model_copy(update={"model": Path(report.model).name, **sources, **models})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=["translator", "classifier"])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--test", help="another test file for the translator")
    parser.add_argument("--model", help="the fine-tuned classifier")
    parser.add_argument("--data", help="CLINC150: train.tsv, valid.tsv, test.tsv")
    parser.add_argument("--method", default="second-order")
    parser.add_argument("--recover", default="reconstruct")
    parser.add_argument("--label", help="name of the result files; default: that of the benchmark")
    args = parser.parse_args()
    if args.name == "classifier" and not (args.model and args.data):
        parser.error("the classifier needs --model and --data")
    report = run(
        recipe_of(args), args.output, f"python -m benchmarks.tables {args.name}", Console()
    )
    label = args.label or args.name
    hardware = ", ".join(f"{key}: {value}" for key, value in report.hardware.items())
    assert report.test is not None
    assert report.throughput is not None
    notes = (
        f"`--method {args.method} --recover {args.recover}`; {report.test.rows} test rows; "
        f"{report.throughput.provider}, {report.throughput.precision}, "
        f"{report.throughput.threads} threads, {report.throughput.lengths}. {hardware}."
    )
    publish(label, f"{table(report)}\n\n{notes}\n")
    without_paths(report).save(RESULTS / f"{label}.json")
    for path in save_plots(report, args.output):
        if path.suffix == ".png":
            (RESULTS / f"{label}-{path.name}").write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
