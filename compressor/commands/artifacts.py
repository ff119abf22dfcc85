"""`compress evaluate`, `bench` and `verify`: quality, throughput and soundness of artifacts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.options.requests import BenchRequest, EvaluateRequest

Artifacts = Annotated[
    list[Path],
    typer.Argument(metavar="ARTIFACT...", help="Artifact directories; the first is the reference."),
]


@o.command(EvaluateRequest, example="compress evaluate dense pruned --test test.tsv")
def evaluate(request: EvaluateRequest, artifacts: Artifacts) -> int:
    """Measure the quality of artifacts on the same rows, by the metrics of their task."""
    from compressor.pipeline.compare_artifacts import evaluate_artifacts
    from compressor.report import facts, numbers
    from compressor.report.sentences import lengths_text

    results = [
        result.model_copy(
            update={
                "comparisons": [
                    # The interval of a difference is the one that reports show and gates judge by.
                    x.model_copy(update={"interval": facts.interval_of(x, result.quality.rows)})
                    for x in result.comparisons
                ]
            }
        )
        for result in evaluate_artifacts(artifacts, request, console)
    ]
    engines = {result.engine for result in results}
    lines = []
    for result in results:
        metrics = ", ".join(
            f"{name} {value:.{facts.metric_style(name).digits}f}"
            for name, value in result.quality.metrics.items()
        )
        how = f"{result.engine}, {result.precision}" if len(engines) > 1 else result.precision
        counted = facts.metric_style(next(iter(result.quality.metrics))).counted
        lines.append(f"{result.directory} ({how}): {metrics} ({result.quality.rows} {counted})")
        lines += [f"  {text}" for text in lengths_text(result.quality)]
        for x in result.comparisons:
            low, high = x.interval
            digits = facts.metric_style(x.metric).digits
            change = f"{x.difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
            lines.append(f"  {x.metric} {change}, p {numbers.p_value(x.p_value)}")
            lines += [f"  {text}" for text in [facts.floor_text(x, "the first one's")] if text]
    signatures = results[0].quality.signatures
    lines += [f"{metric}: {signature}" for metric, signature in signatures.items()]
    console.result("\n".join(lines), {"artifacts": [result.model_dump() for result in results]})
    return 0


@o.command(BenchRequest, example="compress bench dense pruned --test test.tsv -b 1,16")
def bench(request: BenchRequest, artifacts: Artifacts) -> int:
    """Measure sentences and tokens per second, latency and memory across batch sizes."""
    from compressor.pipeline.compare_artifacts import bench_artifacts
    from compressor.report.terminal import bench_text

    throughput = bench_artifacts(artifacts, request, console)
    console.result(bench_text(throughput), throughput.model_dump())
    return 0


@o.command(example="compress verify out")
def verify(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `compress` wrote, with a manifest.json.")
    ],
) -> int:
    """Check files against manifest.json, and graphs against weights."""
    from compressor.pipeline.verification import verify_directory

    outcome = verify_directory(directory, console)
    lines = [f"{directory}: {outcome.files} files are as they were written"]
    lines += [f"  opened {opened}" for opened in outcome.opened]
    lines += [
        f"  {c.name}: {c.largest_difference:.1e} (tolerance {c.tolerance:.1e})"
        for c in outcome.checks
    ]
    if outcome.unlisted:
        lines.append(f"  not listed, and not read: {', '.join(outcome.unlisted)}")
    checks = [check.model_dump() for check in outcome.checks]
    console.result("\n".join(lines), asdict(outcome) | {"checks": checks})
    return 0
