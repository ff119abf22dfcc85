"""`compress bench`: interleaved throughput of exported artifacts, the first being the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)


def bench(
    artifacts: Annotated[
        list[Path], typer.Argument(help="Artifact directories; the first is the reference.")
    ],
    test: Annotated[str, typer.Option("--test", help="Rows to time on.")],
    precision: o.MeasuredPrecision = None,
    batch_size: o.BatchSize = None,
    lengths: o.Lengths = None,
    target_length: o.TargetLength = None,
    bench_seconds: o.BenchSeconds = None,
    threads: o.Threads = None,
    device: o.Device = None,
    source_column: o.SourceColumn = None,
    target_column: o.TargetColumn = None,
    text_column: o.TextColumn = None,
    text_pair_column: o.TextPairColumn = None,
    label_column: o.LabelColumn = None,
    test_rows: o.MeasuredRows = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> int:
    """Measure sentences and tokens per second, latency and memory across batch sizes."""
    from compressor.pipeline.compare_artifacts import bench_artifacts
    from compressor.pipeline.recipe import parse_lengths
    from compressor.report.summary import timing_table

    columns = {
        "source_column": source_column, "target_column": target_column,
        "text_column": text_column, "text_pair_column": text_pair_column,
        "label_column": label_column, "limit": test_rows,
    }  # fmt: skip
    throughput = bench_artifacts(
        artifacts,
        test,
        columns,
        batch_sizes=o.parse_numbers(batch_size, "--batch-size") or [1, 4, 16, 64],
        lengths=parse_lengths(lengths) or "data",
        target_length=target_length,
        precisions=o.parse_precisions(precision),
        seconds=bench_seconds or 3.0,
        threads=threads,
        device=device or "auto",
        progress=console,
    )
    console.result(timing_table(throughput), throughput.model_dump())
    return 0
