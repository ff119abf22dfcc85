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
    from compressor.pipeline.compare_artifacts import bench_artifacts
    from compressor.report.summary import bench_text

    throughput = bench_artifacts(artifacts, request, console)
    console.result(bench_text(throughput), throughput.model_dump())
    return 0
