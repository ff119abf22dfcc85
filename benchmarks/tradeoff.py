"""Quality against measured speed: what users choose from, in every precision and engine.

    python -m benchmarks.tradeoff translator --output OUT --data TATOEBA
    python -m benchmarks.tradeoff classifier --output OUT --data CLINC150 --model FINE_TUNED
    python -m benchmarks.tradeoff long-classifier --output OUT --data R8 --model FINE_TUNED \
        --calibration $PWD/FINE_TUNED.work/valid.tsv --prune all

Compresses a model to several shares of its multiply-adds with `compress run`, in fp32, int8 and
what the other engines of --engines compute in, and times every build in turns with the dense ones.
With --prune all tokens are removed too, with --drop-layers layers, and with --speedup units are
chosen by time, each in a report of its own, as has --distill-augment, and --target-text, which
cuts a translator's tokens. DATA holds valid.tsv (calibration) and test.tsv. With --recover
reconstruct+distill --distill-text FILE the recovery also trains; give it the same shares, so that
each point has its counterpart. The report goes to benchmarks/results/tradeoff-NAME-RECOVER.json (or
…-all.json, …-layers.json, …); table and figure are drawn from all reports of the name. The same
command resumes a stopped run; --draw computes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import pages
from compressor import example
from compressor.report.plots import COLORS, DENSE, FAINT
from compressor.report.schema import Report, load_report
from compressor.steps.results import Comparison, Timing, Variant
from compressor.tasks import TASKS

MACS = "0.7,0.5,0.4,0.3,0.25"
BATCHES = [1, 16, 64]
LIMITS = (0.5, 1.0)  # points of the main metric
UNIT = {"translation": "BLEU", "classification": "accuracy, %"}
# Name -> engines, without which there is no fastest dense build of any engine.
ENGINES = {
    "translator": "onnxruntime,ctranslate2",
    "classifier": "onnxruntime,openvino",
    "long-classifier": "onnxruntime,openvino",
}
DENSE_NAME = "dense"
# Engine and precision -> label, marker and line.
LOOKS = {
    ("onnxruntime", "fp32"): ("fp32", "o", "-"),
    ("onnxruntime", "int8"): ("int8", "s", "--"),
    ("openvino", "bf16"): ("OpenVINO, bf16", "^", ":"),
    ("ctranslate2", "int8"): ("CTranslate2, int8", "^", ":"),
}


def load_reports(name: str) -> list[Report]:
    """The measured reports about a model, one for each recovery."""
    return [load_report(path) for path in sorted(pages.RESULTS.glob(f"tradeoff-{name}-*.json"))]


def main_comparison(report: Report, variant: Variant) -> Comparison:
    """Pruned (or dense in int8) against dense in fp32."""
    metric = TASKS[report.task].main_metric
    return next(c for c in variant.comparisons if c.metric == metric)


def timing(report: Report, name: str, batch: int) -> Timing:
    assert report.throughput is not None
    return next(
        row for row in report.throughput.rows if (row.variant, row.batch_size) == (name, batch)
    )


def gain(report: Report, name: str, batch: int) -> float:
    """Times as fast as the fastest dense build of any engine that was timed."""
    measured = timing(report, name, batch).fastest_speedup
    assert measured is not None  # by every run with several engines
    return measured


def build_of(variant: Variant) -> tuple[str, str]:
    """Engine and precision."""
    return variant.engine, variant.precision


def fastest(
    reports: Sequence[Report], builds: Sequence[tuple[str, str]], batch: int, most_lost: float
) -> tuple[Report, Variant] | None:
    """The fastest cut, in one of some engines and precisions, that loses at most so many points."""
    found = [
        (report, variant)
        for report in reports
        if batch in timed_batches([report])
        for variant in report.variants
        if build_of(variant) in builds
        and not is_dense(variant)
        and main_comparison(report, variant).difference >= -most_lost
    ]
    return max(found, key=lambda pair: gain(pair[0], pair[1].name, batch), default=None)


def is_dense(variant: Variant) -> bool:
    return DENSE_NAME in (variant.name, variant.base)


def looks(reports: Sequence[Report]) -> dict[tuple[str, str], tuple[str, str, str]]:
    """Of the engines and precisions that were measured."""
    there = {build_of(variant) for report in reports for variant in report.variants}
    return {build: look for build, look in LOOKS.items() if build in there}


def timed_batches(reports: Sequence[Report]) -> list[int]:
    """The batch sizes that all reports have."""
    timed = [{row.batch_size for row in x.throughput.rows} for x in reports if x.throughput]
    return sorted(set.intersection(*timed))


def table(reports: Sequence[Report], name: str) -> str:
    """Markdown: every build, then the fastest ones within each limit."""
    first, sizes = reports[0], sorted({x for report in reports for x in timed_batches([report])})
    assert first.throughput is not None
    metric, batches = UNIT[first.task], [f"batch {batch}" for batch in sizes]
    rows = []
    for report in reports:
        for variant in report.variants:
            found = main_comparison(report, variant)
            rows.append([
                recovery_of(report, variant), variant.name, f"{found.pruned:.2f}",
                pages.with_interval(found.difference, found.interval, "+"),
                *(_speed(report, variant.name, batch) for batch in sizes),
                *(_gain(report, variant.name, batch) for batch in sizes),
                f"{variant.onnx_bytes / 1e6:.1f}",
            ])  # fmt: skip
    titles = ["recovery", "build", metric, "difference [95 %]"]
    titles += [*(f"{batch} (multiply-adds)" for batch in batches)]
    titles += [*(f"over the fastest dense, {batch}" for batch in batches), "ONNX, MB"]
    best = [
        [f"{limit:g}", label, *(_fastest(reports, build, b, limit) for b in sizes)]
        for limit in LIMITS
        for build, (label, *_) in looks(reports).items()
    ]
    best_titles = ["at most lost", "build", *(f"fastest at {batch}" for batch in batches)]
    about = (
        f"{name}: {first.dense.parameters:,} parameters; {metric} on "
        f"{first.test.rows if first.test else 0:,} rows; {first.throughput.threads} "
        f"thread{'s' * (first.throughput.threads != 1)}, {_processors(reports)}. "
        "Times as fast as dense fp32, and as the fastest dense build of any engine, timed in turns "
        "with them; in brackets the ratio of multiply-adds; a run for each recovery, with dense "
        "builds of its own. –: not timed."
    )
    builds = pages.markdown_table(titles, "llr", rows)
    return f"{about}\n\n{builds}\n\n{pages.markdown_table(best_titles, 'llr', best)}\n"


def _processors(reports: Sequence[Report]) -> str:
    """The processor, or of each recovery its own."""
    by_recovery = {of_report(report): report.hardware.get("cpu", "") for report in reports}
    if len(set(by_recovery.values())) == 1:
        return next(iter(by_recovery.values()))
    return "; ".join(f"{recovery}: {cpu}" for recovery, cpu in by_recovery.items())


def _gain(report: Report, model: str, batch: int) -> str:
    return f"{gain(report, model, batch):.2f}" if batch in timed_batches([report]) else "–"


def _speed(report: Report, model: str, batch: int) -> str:
    if batch not in timed_batches([report]):
        return "–"
    timed = timing(report, model, batch)
    ratio = f" ({timed.macs_ratio:.2f})" if timed.macs_ratio else ""
    return f"{timed.speedup or 1:.2f}{ratio}"


def _fastest(reports: Sequence[Report], build: tuple[str, str], batch: int, limit: float) -> str:
    found = fastest(reports, [build], batch, limit)
    if found is None:
        return "–"
    report, variant = found
    how = f"{variant.name}, {recovery_of(report, variant)}"
    return f"{gain(report, variant.name, batch):.2f} ({how})"


def recovery_of(report: Report, variant: Variant) -> str:
    """`reconstruct+distill` of the report's sentence about the recovery, and what else went.

    That is, whether tokens and layers did, tokens that a decoder scores, and whether units went by
    measured time. Also whether it learned from altered copies of its text.
    """
    if is_dense(variant):
        return f"none, beside {of_report(report)}"
    names = "+".join(part.partition(":")[0] for part in variant.recovery.split("; then "))
    by_time = variant.name.startswith("speedup")
    stacks = {layer.partition(".")[0] for layer in variant.dropped_layers}
    names += ", tokens" * bool(variant.handed_on) + ", layers" * bool(stacks)
    names += " of both stacks" * (len(stacks) > 1)
    names += ", target text" * (variant.output_tokens != report.dense.output_tokens)
    names += ", augmented" * ("altered copies" in variant.recovery)
    return names + ", by time" * by_time


def of_report(report: Report) -> str:
    """The recovery of its deepest cut."""
    cuts = [variant for variant in report.variants if not is_dense(variant)]
    return recovery_of(report, min(cuts, key=lambda variant: variant.macs_share))


def figure(reports: Sequence[Report], path: Path) -> None:
    """A panel per batch size: quality with 95 % intervals against measured speed-up."""
    batches = timed_batches(reports)
    width, count = 5.4 * len(batches), len(batches)
    with pages.drawing(path, width, 4.8, ncols=count, sharey=True) as (drawn, (panels,)):
        for panel, batch in zip(panels, batches, strict=True):
            _draw(panel, reports, batch)
            panel.set_title(f"batch {batch}", loc="left")
            panel.set_xlabel("times as fast as the fastest dense build, measured")
        panels[0].set_ylabel(UNIT[reports[0].task])
        handles, labels = panels[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper left", ncols=3)


def _draw(panel: Any, reports: Sequence[Report], batch: int) -> None:
    quality = reports[0].dense.quality
    assert quality is not None
    dense = quality.metrics[TASKS[reports[0].task].main_metric]
    panel.axhline(dense, color=DENSE, linewidth=1, linestyle=":")
    panel.axhline(dense - LIMITS[-1], color=FAINT, linewidth=1, linestyle="--")
    for build, (label, marker, _) in looks(reports).items():
        points = [point for report in reports for point in _points(report, build, batch)]
        _series(panel, points, label=f"{label}, dense", marker=marker, color=DENSE)
    for place, report in enumerate(reports):
        recovery = of_report(report)
        for build, (label, marker, line) in looks(reports).items():
            _series(
                panel, _points(report, build, batch, cuts=True), line,
                label=f"{label}, {recovery}", marker=marker, color=COLORS[place % len(COLORS)],
            )  # fmt: skip


# Speed-up, quality and its 95 % interval.
Point = tuple[float, float, tuple[float, float]]


def _points(
    report: Report, build: tuple[str, str], batch: int, *, cuts: bool = False
) -> list[Point]:
    """The dense builds, or the cuts, the mildest first."""
    points = []
    if not cuts and build == build_of(report.dense):
        dense = main_comparison(report, report.variants[0]).dense
        points.append((gain(report, report.dense.name, batch), dense, (dense, dense)))
    for variant in sorted(report.variants, key=lambda variant: -variant.macs_share):
        if build_of(variant) == build and is_dense(variant) is not cuts:
            found = main_comparison(report, variant)
            low, high = (found.dense + end for end in found.interval)
            points.append((gain(report, variant.name, batch), found.pruned, (low, high)))
    return points


def _series(panel: Any, points: Sequence[Point], line: str = "", **look: Any) -> None:
    """Points with their intervals, joined from cut to cut where there are several.

    What lies between dense and the mildest cut was not measured, and is not drawn.
    """
    for ratio, _, ends in points:
        panel.plot([ratio, ratio], ends, color=look["color"], linewidth=1, alpha=0.5)
    ratios, qualities = [point[0] for point in points], [point[1] for point in points]
    panel.plot(ratios, qualities, linestyle=line if len(points) > 1 else "", **look)


def _problem(args: Any) -> str:
    needed = [args.output, args.data, *([args.model] if args.name != "translator" else [])]
    there = args.draw or all(needed)
    return "" if there else "give --output, --data, and --model for a classifier; or --draw"


def main() -> None:
    parser = pages.arguments(__doc__, _problem)
    parser.add_argument("name", choices=ENGINES)
    parser.add_argument("--output", type=Path, help="directory of the run")
    parser.add_argument("--data", help="directory with the calibration rows and test.tsv")
    parser.add_argument(
        "--calibration", default="valid.tsv", help="file in --data, or an absolute path"
    )
    parser.add_argument("--model", help="the fine-tuned classifier")
    parser.add_argument(
        "--prune", choices=["both", "all"], default="both", help="heads and neurons; tokens too"
    )
    parser.add_argument("--macs", help=f"default: {MACS}")
    parser.add_argument("--speedup", type=float, help="in place of --macs")
    parser.add_argument("--at-batch", type=int, help="of --speedup; default: 16")
    parser.add_argument("--engines", help="onnxruntime and others; default: one more")
    parser.add_argument("--recover", default="reconstruct")
    parser.add_argument("--drop-layers")
    parser.add_argument("--target-text", help="what a translator's decoder keeps tokens of")
    parser.add_argument("--rows", type=int, default=2048, help="calibration rows")
    parser.add_argument("--test-rows", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each timing")
    parser.add_argument("--distill-text")
    parser.add_argument("--distill-start", help="an artifact whose weights to go on from")
    parser.add_argument("--distill-augment", type=int, help="altered copies of each line")
    parser.add_argument("--distill-beams", type=int, help="of the translations to learn from")
    parser.add_argument("--epochs", type=int, help="of distillation")
    parser.add_argument("--minutes", type=float, help="of distillation, of each model")
    parser.add_argument("--distill-precision")
    parser.add_argument("--learning-rate", type=float, help="of distillation")
    parser.add_argument("--draw", action="store_true", help="only draw the table and the figure")
    args = parser.parse_args()
    if not args.draw:
        _measure(args)
    reports = load_reports(args.name)
    figure(reports, pages.RESULTS / f"tradeoff-{args.name}.png")
    pages.publish(f"tradeoff-{args.name}", table(reports, args.name))


def _measure(args: Any) -> None:
    """Run `compress`, and keep its report."""
    if args.macs is None and args.speedup is None:
        args.macs = MACS
    model = str(example.model()) if args.name == "translator" else args.model
    options = {
        "calibration": str(Path(args.data) / args.calibration),
        "calibration_rows": args.rows,
        "engines": args.engines or ENGINES[args.name],
        "test": f"{args.data}/test.tsv",
        "bench_seconds": args.seconds,
        "distill_epochs": args.epochs,
        "distill_minutes": args.minutes,
    }
    same = ["macs", "speedup", "prune", "recover", "drop_layers", "threads", "test_rows"]
    same += ["distill_text", "distill_augment", "distill_precision", "learning_rate"]
    same += ["target_text", "distill_beams", "distill_start", "at_batch"]
    options |= {name: getattr(args, name) for name in same}
    precisions = ["fp32,int8"]
    pages.compress(args.output, model=model, precision=precisions, batch_size=BATCHES, **options)
    text = (args.output / "report.json").read_text(encoding="utf-8")
    given = [args.distill_start] if args.distill_start else []
    for path in (str(args.output), str(args.data), args.model or str(example.model()), *given):
        text = text.replace(path, Path(path).name)  # nothing of this machine's directories
    ending = "-all" * (args.prune == "all")
    ending += "-both" * ("," in (args.drop_layers or "")) + "-layers" * bool(args.drop_layers)
    ending += "-augmented" * bool(args.distill_augment) + "-beams" * bool(args.distill_beams)
    ending += "-speedup" * (args.speedup is not None)
    ending += "-target" * bool(args.target_text)
    kept = pages.RESULTS / f"tradeoff-{args.name}-{args.recover}{ending}.json"
    kept.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
