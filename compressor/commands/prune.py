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
    keep: o.Keep = None,
    remove: o.Remove = None,
    floor: o.Floor = None,
    revision: o.Revision = None,
    allow_pickle: o.AllowPickle = None,
    trust_remote_code: o.TrustRemoteCode = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> int:
    """Remove the least important heads and save the smaller checkpoint, checked."""
    given = {
        "model": model, "keep": keep, "remove": remove, "floor": floor, "revision": revision,
        "allow_pickle": allow_pickle, "trust_remote_code": trust_remote_code,
    }  # fmt: skip
    from compressor.recipe import build_recipe
    from compressor.steps import prune_checkpoint, read_scores

    if len(keep or []) + len(remove or []) != 1:
        raise UsageError("say once how many heads to keep, for example --keep 0.5")
    mask, check = prune_checkpoint(build_recipe(given), read_scores(scores), output)
    counts = "; ".join(f"{kind} {mask.count(kind)} of {mask.total(kind)}" for kind in mask.kinds())
    console.result(
        f"{output}: {mask.count()} of {mask.total()} heads kept ({counts}); {check.name} within "
        f"{check.largest_difference:.1e}",
        {"output": str(output), "kept": mask.to_json(), "check": check.model_dump()},
    )
    return 0
