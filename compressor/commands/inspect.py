"""`compress inspect`: what a checkpoint is made of, and the most that pruning heads can gain."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.pipeline.recipe import InspectRequest


def register(app: typer.Typer) -> None:
    o.add_command(app, "inspect", inspect, InspectRequest)


def inspect(
    request: InspectRequest,
    model: Annotated[str, typer.Argument(help="Checkpoint: a local directory or a hub id.")],
) -> int:
    """Show kinds of attention, layers, heads, and how much of the model they are."""
    from compressor.model.checkpoint import open_checkpoint
    from compressor.pipeline.inspection import inspect_checkpoint
    from compressor.report.text_table import render_table

    checkpoint = open_checkpoint(model, **request.access.model_dump())
    found = inspect_checkpoint(checkpoint)
    rows = [
        [
            kind.kind,
            str(kind.layers),
            str(kind.head_dim),
            f"{kind.parameters:,}",
            f"{kind.parameters / found.parameters:.1%}",
            f"{' '.join(map(str, kind.heads))} (= {sum(kind.heads)})",
        ]
        for kind in found.kinds
    ]
    columns = ["attention", "layers", "head size", "parameters", "share", "heads"]
    lines = [
        f"{found.model}: {found.model_type}, {found.task}, "
        f"{found.parameters:,} parameters stored as {found.dtype}",
        "",
        render_table(columns, rows, align="lrrrrl"),
        "",
        "Heads' share of the multiply-adds, and the speed-up if all of them went:",
    ]
    for row in found.macs:
        shape = f"batch {row['batch_size']}, {row['source_tokens']} source tokens"
        if row["target_tokens"]:
            shape += f", {row['target_tokens']} target tokens"
        lines.append(f"  {shape}: {row['attention_share']:.1%}, at most {row['most_speedup']:.2f}x")
    console.result("\n".join(lines), asdict(found))
    return 0
