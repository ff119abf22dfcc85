"""`compress prune`: remove heads by scores that are there already; no export, no measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command("prune")(prune)


def prune(
    scores: Annotated[Path, typer.Option("--scores", help="Scores from `compress score`.")],
    output: o.Output,
    model: o.Model = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="Heads to keep: 0.5, 36, or encoder_self=0.3,cross=0.8."),
    ] = None,
    remove: o.Remove = None,
    floor: o.Floor = None,
    recover: Annotated[
        str | None,
        typer.Option(
            "--recover",
            help="Repair after the cut: none (default here), reconstruct, distill, or "
            "reconstruct+distill; needs --calibration.",
        ),
    ] = None,
    calibration: o.Calibration = None,
    distill_epochs: o.DistillEpochs = None,
    learning_rate: o.LearningRate = None,
    patience: o.Patience = None,
    seed: o.Seed = None,
    device: o.Device = None,
    source_column: o.SourceColumn = None,
    target_column: o.TargetColumn = None,
    text_column: o.TextColumn = None,
    text_pair_column: o.TextPairColumn = None,
    label_column: o.LabelColumn = None,
    calibration_rows: o.CalibrationRows = None,
    revision: o.Revision = None,
    allow_pickle: o.AllowPickle = None,
    trust_remote_code: o.TrustRemoteCode = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> int:
    """Remove the least important heads, maybe repair, and save the smaller checkpoint."""
    given = dict(locals())
    from compressor.pipeline.recipe import build_recipe
    from compressor.pipeline.single_steps import prune_checkpoint, read_scores

    for name in ("scores", "output", "quiet", "verbose", "as_json"):
        del given[name]
    given["recover"] = recover or "none"
    if len(keep or []) + len(remove or []) != 1:
        raise UsageError("say once how many heads to keep, for example --keep 0.5")
    mask, check, repair = prune_checkpoint(
        build_recipe(given), read_scores(scores), output, console
    )
    counts = "; ".join(f"{kind} {mask.count(kind)} of {mask.total(kind)}" for kind in mask.kinds())
    console.result(
        f"{output}: {mask.count()} of {mask.total()} heads kept ({counts}); {check.name} within "
        f"{check.largest_difference:.1e}" + (f"; {repair}" if repair else ""),
        {
            "output": str(output),
            "kept": mask.to_json(),
            "check": check.model_dump(),
            "recovery": repair,
        },
    )
    return 0
