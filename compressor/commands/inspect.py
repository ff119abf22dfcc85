"""`compress inspect`: what a checkpoint is made of, and the most that pruning heads can gain."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console


def register(app: typer.Typer) -> None:
    app.command("inspect")(inspect)


def inspect(
    model: Annotated[str, typer.Argument(help="Checkpoint: a local directory or a hub id.")],
    revision: o.Revision = None,
    allow_pickle: o.AllowPickle = None,
    trust_remote_code: o.TrustRemoteCode = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> int:
    """Show kinds of attention, layers, heads, and how much of the model they are."""
    from compressor.model.checkpoint import open_checkpoint
    from compressor.pipeline.inspection import inspect_checkpoint

    checkpoint = open_checkpoint(
        model,
        revision=revision,
        allow_pickle=bool(allow_pickle),
        trust_remote_code=bool(trust_remote_code),
    )
    found = inspect_checkpoint(checkpoint)
    lines = [
        f"{found.model}: {found.model_type}, {found.task}, "
        f"{found.parameters:,} parameters stored as {found.dtype}",
        "",
        f"{'attention':<14}{'layers':>7}{'head size':>11}{'parameters':>13}{'share':>8}  heads",
    ]
    for kind in found.kinds:
        share = kind.parameters / found.parameters
        heads = " ".join(map(str, kind.heads))
        lines.append(
            f"{kind.kind:<14}{kind.layers:>7}{kind.head_dim:>11}{kind.parameters:>13,}{share:>8.1%}"
            f"  {heads} (= {sum(kind.heads)})"
        )
    lines += ["", "Heads' share of the multiply-adds, and the speed-up if all of them went:"]
    for row in found.macs:
        shape = f"batch {row['batch_size']}, {row['source_tokens']} source tokens"
        if row["target_tokens"]:
            shape += f", {row['target_tokens']} target tokens"
        lines.append(f"  {shape}: {row['attention_share']:.1%}, at most {row['most_speedup']:.2f}x")
    console.result("\n".join(lines), asdict(found))
    return 0
