"""The report's tables of timings: how fast, in which engine, and at which shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from compressor.export.precision_names import ON_DEVICE
from compressor.report import facts, numbers, phrases
from compressor.report.schema import Report
from compressor.report.table import Column, ReportTable, columns
from compressor.results import Timing
from compressor.tasks import TASKS


def throughput(report: Report) -> ReportTable:
    """Speed of every model at every batch size."""

    def cells(row: Timing) -> tuple[str, ...]:
        compared = row.variant != report.dense.name
        return (
            numbers.adaptive(row.sentences_per_second),
            numbers.adaptive(row.tokens_per_second),
            *(numbers.adaptive(row.latency_ms.get(name)) for name in ("p50", "p90", "p99")),
            numbers.adaptive(row.peak_memory_mib),
            phrases.speedup(row) if compared else "",
            numbers.fixed(row.macs_ratio, 2) if compared else "",
            _PAYS[facts.gain(row)] if compared else "reference",
        )

    return ReportTable(
        key="throughput",
        caption="Throughput by batch size. Latency is that of one batch; tokens are "
        f"{TASKS[report.task].counted_tokens} tokens; the speed-up has its 95% interval. The ratio "
        "of multiply-adds is dense over the model's, at the lengths that were timed.",
        columns=(
            *columns("Model", "Batch", "Sentences/s", "Tokens/s", "p50 ms", "p90 ms", "p99 ms"),
            *map(Column, ("Peak MiB", "Speed-up", "Ratio of multiply-adds")),
            Column("Result", numeric=False),
        ),
        rows=_by_batch(report, cells),
        title="Throughput",
        notes=tuple(_for_another_device(report)),
    )


_PAYS: dict[facts.Gain, str] = {
    "faster": "pays",
    "same": "does not pay",
    "slower": "slower than dense",
    "unknown": "not usable",
}


def _for_another_device(report: Report) -> Iterator[str]:
    """Precisions that the device has no kernels for; it computes most of them in float32."""
    device = report.throughput.device if report.throughput else ""
    elsewhere = {name for names in ON_DEVICE.values() for name in names}
    for name in dict.fromkeys(x.precision for x in report.variants if x.in_default_engine):
        if device in ON_DEVICE and name in elsewhere - set(ON_DEVICE[device]):
            yield (
                f"{name} is not for a {device}, which computes most of it in float32: its speed "
                "here says nothing."
            )


def engines(report: Report) -> ReportTable:
    """What models gain over dense ones in the same engine and in the fastest."""

    def cells(row: Timing) -> tuple[str, ...]:
        return (
            row.engine or "",
            row.precision or "",
            numbers.adaptive(row.sentences_per_second),
            phrases.ratio(row.engine_speedup, row.engine_speedup_interval),
            phrases.ratio(row.fastest_speedup, row.fastest_speedup_interval),
            row.fastest or "",
        )

    several = any(row.fastest is not None for row in facts.all_timings(report))
    return ReportTable(
        key="engines",
        caption="Speed-up by engine, with 95% intervals: over the dense model in the same engine, "
        "and over the fastest dense build of any engine at that batch size.",
        columns=columns(
            *("Model", "Batch", "Engine", "Precision", "Sentences/s", "Same engine"),
            *("Fastest dense", "Which is"),
        ),
        rows=_by_batch(report, cells) if several else (),
        title="Engines",
        notes=tuple(_over_fastest(report)),
    )


def _over_fastest(report: Report) -> Iterator[str]:
    """What each pruned model gains in the best of its builds."""
    for variant in facts.pruned(report):
        timed = [
            row
            for build in facts.builds(report, variant)
            for row in facts.timings(report, build.name)
            if row.fastest_speedup is not None
        ]
        timed.sort(key=lambda row: row.sentences_per_second)
        best = {row.batch_size: row for row in timed}
        gains = [
            f"{phrases.ratio(row.fastest_speedup, row.fastest_speedup_interval)} at batch {size} "
            f"({row.variant} over {row.fastest})"
            for size, row in sorted(best.items())
        ]
        if gains:
            yield (
                f"The fastest build of {variant.name}, over the fastest dense build of any engine: "
                f"{phrases.join(gains)}."
            )


def shapes(report: Report) -> ReportTable:
    """The shape that was timed at each batch size."""

    def cells(row: Timing) -> tuple[str, ...]:
        run = report.throughput
        return (
            numbers.fixed(row.source_tokens, 1),
            numbers.fixed(row.padded_source_tokens, 1),
            numbers.fixed(row.target_tokens, 1),
            str(row.runs),
            row.precision or (run.precision if run else ""),
            row.provider or (run.provider if run else ""),
        )

    return ReportTable(
        key="shapes",
        caption="Shapes that were timed (mean tokens per row).",
        columns=columns(
            "Model",
            *("Batch", "Source tokens", "With padding", "Generated tokens", "Runs"),
        )
        + columns("Precision, Provider"),
        rows=_by_batch(report, cells),
        title="Shapes",
        folded=True,
    )


def _by_batch(
    report: Report, cells: Callable[[Timing], tuple[str, ...]]
) -> tuple[tuple[str, ...], ...]:
    """Rows grouped by batch size, dense first in each group."""
    timed = sorted(facts.all_timings(report), key=lambda row: row.batch_size)
    return tuple((row.variant, str(row.batch_size), *cells(row)) for row in timed)
