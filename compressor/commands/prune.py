"""`compress prune`: remove heads by scores that are there already; no export, no measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.request.recipe import PruneRequest


@o.command(
    PruneRequest, example="compress prune -m MODEL --scores scores.json --keep 0.5 -o pruned"
)
def prune(
    request: PruneRequest,
    scores: Annotated[
        Path,
        typer.Option(
            "--scores", rich_help_panel="Model and output", help="Scores from `compress score`."
        ),
    ],
    output: o.Output,
) -> int:
    """Remove the least important units, maybe recover quality, and save the smaller checkpoint."""
    from compressor.pipeline.run import prune_checkpoint
    from compressor.pipeline.score import read_scores

    mask, check, recovery = prune_checkpoint(request, read_scores(scores), output, console)
    counts = "; ".join(
        f"{kind} {mask.count(kind):,} of {mask.total(kind):,}"
        for kind in mask.kinds()
        if mask.count(kind) < mask.total(kind)
    )
    console.result(
        f"{output}: {mask} kept ({counts or 'nothing removed'}); {check.name} within "
        f"{check.largest_difference:.1e}" + (f"; {recovery}" if recovery else ""),
        {
            "output": str(output),
            "kept": mask.to_json(),
            "check": check.model_dump(),
            "recovery": recovery,
        },
    )
    return 0
