"""`compress score`, `prune` and `export`: single steps of a run, of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import UsageError
from compressor.options.requests import (
    ExportRequest,
    PruneRequest,
    ScoreRequest,
    make_score_requests,
)


@o.command(ScoreRequest, example="compress score -m MODEL --calibration valid.tsv -o scores.json")
def score(
    typed: dict[str, Any],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            rich_help_panel="Model and output",
            help="Scores file to write (JSON).",
        ),
    ],
) -> int:
    """Score every unit and write the scores, for `compress prune`; maybe compare methods."""
    from compressor.pipeline.single import score_checkpoint
    from compressor.report.scores_file import is_scores_file, write_scores
    from compressor.report.terminal import scores_text
    from compressor.storage.files import require_file
    from compressor.study.compare_scores import (
        compare_scores,
        comparison_plot,
        comparison_text,
        is_comparison_plot,
    )

    request, *others = make_score_requests(typed)
    plot = output.with_suffix(".png")
    require_file(output, "a scores file", is_scores_file)
    if others:
        if plot == output:
            raise UsageError(
                f"--output {output} is where the plot of --compare goes; give it another ending",
                id="scores-and-plot-in-one-file",
            )
        require_file(plot, "a plot of scores", is_comparison_plot)
    scores = score_checkpoint(request, console)
    written = write_scores(output, scores)
    seconds = scores.cost["seconds"]
    lines = [f"{scores.method}: scores in {output}, {seconds:.1f} s", scores.signature, ""]
    lines.append(scores_text(scores))
    data = {"output": str(output), **written}
    if others:
        compared = [scores, *(score_checkpoint(other, console) for other in others)]
        comparison = compare_scores(compared)
        comparison_plot(compared, plot)
        lines += ["", comparison_text(comparison), f"plot: {plot}"]
        data |= {"comparison": comparison, "plot": str(plot)}
    console.result("\n".join(lines), data)
    return 0


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
    from compressor.pipeline.single import prune_checkpoint
    from compressor.report.scores_file import read_scores
    from compressor.report.sentences import units_by_kind

    mask, check, recovery = prune_checkpoint(request, read_scores(scores), output, console)
    counts = units_by_kind(mask)
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


@o.command(ExportRequest, example="compress export -m MODEL -o out")
def export(request: ExportRequest, output: o.Output) -> int:
    """Write OUTPUT/onnx, which `compressor.runtime` runs without PyTorch.

    With --source-text OUTPUT is a checkpoint, too, which has fewer tokens.
    With --layout optimum OUTPUT itself is a directory that optimum's ORTModel classes open, with
    --layout ctranslate2 one for ctranslate2.Translator.
    """
    from compressor.pipeline.single import export_checkpoint

    checks = export_checkpoint(request, output, console)
    lines = [f"wrote {output / 'onnx' if request.layout == 'compress' else output}"]
    lines += [
        f"  {c.name}: {c.largest_difference:.1e} (tolerance {c.tolerance:.1e}); {c.detail}"
        for c in checks
    ]
    facts = {"output": str(output), "checks": [c.model_dump() for c in checks]}
    console.result("\n".join(lines), facts)
    return 0
