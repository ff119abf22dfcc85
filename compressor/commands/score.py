"""`compress score`: how important is each head?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console


def register(app: typer.Typer) -> None:
    app.command("score")(score)


def score(
    output: Annotated[Path, typer.Option("-o", "--output", help="Scores file to write (JSON).")],
    model: o.Model = None,
    calibration: o.Calibration = None,
    method: o.Method = None,
    per: o.Per = None,
    normalize: o.Normalize = None,
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
    """Score every head and write the scores, for `compress prune`."""
    given = dict(locals())
    from compressor.recipe import build_recipe
    from compressor.stages import scores_to_json
    from compressor.steps import score_checkpoint
    from compressor.workspace import write_json

    for name in ("output", "quiet", "verbose", "as_json"):
        del given[name]
    scores = score_checkpoint(build_recipe(given), console)
    write_json(output, scores_to_json(scores))
    lines = [f"{scores.signature}, {scores.cost['seconds']:.1f} s; scores in {output}", ""]
    width = max(len(name) for name in scores.values)
    for name, values in scores.values.items():
        lines.append(f"{name:<{width}}  " + " ".join(f"{value:9.3g}" for value in values))
    console.result("\n".join(lines), {"output": str(output), **scores_to_json(scores)})
    return 0
