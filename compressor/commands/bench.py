"""`compress bench`: interleaved throughput of exported artifacts, the first being the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.request.recipe import BenchRequest


@o.command(BenchRequest, example="compress bench dense pruned --test test.tsv -b 1,16")
def bench(
    request: BenchRequest,
    artifacts: Annotated[
        list[Path],
        typer.Argument(
            metavar="ARTIFACT...", help="Artifact directories; the first is the reference."
        ),
    ],
) -> int:
    """Measure sentences and tokens per second, latency and memory across batch sizes."""
    from compressor.export.engine_names import split_engines
    from compressor.export.precision_names import named_precisions
    from compressor.pipeline.compare_artifacts import bench_artifacts
    from compressor.report.summary import timing_table

    precisions, engines = request.builds.precision, split_engines(request.builds.engine)
    throughput = bench_artifacts(
        artifacts, request, named_precisions(precisions), console, engines=engines
    )
    console.result(timing_table(throughput), throughput.model_dump())
    return 0
