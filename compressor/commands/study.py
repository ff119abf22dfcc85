"""`compress study`: what the heads of a model do, and which of them it needs."""

from __future__ import annotations

from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command("study")(study)


def study(
    name: Annotated[
        str,
        typer.Argument(
            help="heads: each removed alone. layers: all but one removed. curve: quality against "
            "heads removed. agreement: of two data sets. training: over checkpoints. roles: "
            "positional, syntactic, rare-word."
        ),
    ],
    output: o.Output,
    model: o.Model = None,
    test: o.Test = None,
    calibration: o.Calibration = None,
    other: Annotated[
        str | None, typer.Option("--other", help="agreement: the second data set.")
    ] = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option("--checkpoint", help="training: a checkpoint; repeat in order."),
    ] = None,
    conllu: Annotated[
        str | None, typer.Option("--conllu", help="roles: sentences with dependencies (CoNLL-U).")
    ] = None,
    pruned: Annotated[
        str | None, typer.Option("--pruned", help="roles: the model after pruning (a directory).")
    ] = None,
    from_word: Annotated[
        str | None,
        typer.Option("--from-word", help="roles: attention from a word's last token or the mean."),
    ] = None,
    method: o.Method = None,
    per: o.Per = None,
    normalize: o.Normalize = None,
    ablate: o.Ablate = None,
    recover: Annotated[
        str | None,
        typer.Option("--recover", help="curve: none (default) or reconstruct at every point."),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option("--points", help="curve, training: percentages to remove, as in 0,20,40."),
    ] = None,
    num_beams: Annotated[
        int | None,
        typer.Option("--num-beams", min=1, help="Beam width of translators; default: 1, greedy."),
    ] = None,
    resamples: Annotated[
        int | None, typer.Option("--resamples", help="Bootstrap resamples. Default: 10,000.")
    ] = None,
    device: o.Device = None,
    seed: o.Seed = None,
    source_column: o.SourceColumn = None,
    target_column: o.TargetColumn = None,
    text_column: o.TextColumn = None,
    text_pair_column: o.TextPairColumn = None,
    label_column: o.LabelColumn = None,
    calibration_rows: o.CalibrationRows = None,
    test_rows: o.TestRows = None,
    revision: o.Revision = None,
    allow_pickle: o.AllowPickle = None,
    trust_remote_code: o.TrustRemoteCode = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> int:
    """Analyse the heads of a model; writes study-NAME.json, .md, .png and .svg."""
    given = dict(locals())
    from compressor.study import build_options, run_study

    for key in ("name", "output", "quiet", "verbose", "as_json"):
        del given[key]
    given["points"] = _percentages(points)
    result = run_study(build_options(name, given), output, console)
    from compressor.study.output import render_text

    console.message(f"\nstudy: {output / f'study-{name}.md'}\n")
    console.result(render_text(result), {"output": str(output), **result.data})
    return 0


def _percentages(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--points {text!r}: write percentages, as in --points 0,20,40")
    return [int(part) for part in parts]
