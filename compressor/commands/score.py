"""`compress score`: how important is each head?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console
from compressor.errors import InputError, UsageError


def register(app: typer.Typer) -> None:
    app.command("score")(score)


def score(
    output: Annotated[Path, typer.Option("-o", "--output", help="Scores file to write (JSON).")],
    model: o.Model = None,
    calibration: o.Calibration = None,
    method: o.Method = None,
    compare: Annotated[
        list[str] | None,
        typer.Option("--compare", help="Other methods to compare with; repeat for several."),
    ] = None,
    per: o.Per = None,
    normalize: o.Normalize = None,
    ablate: o.Ablate = None,
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
    """Score every head and write the scores, for `compress prune`; maybe compare methods."""
    given = dict(locals())
    from compressor.files import write_json
    from compressor.importance.compare import compare_scores, comparison_plot, comparison_table
    from compressor.pipeline.recipe import build_recipe
    from compressor.pipeline.single_steps import score_checkpoint
    from compressor.pipeline.validate import (
        check_method,
        refuse_unused_rows,
        refuse_unused_scoring,
        require_calibration,
    )

    for name in ("output", "compare", "quiet", "verbose", "as_json"):
        del given[name]
    recipe = build_recipe(given)
    for other in [recipe.method, *(compare or [])]:
        check_method(other)
        require_calibration(other, recipe.calibration)
    refuse_unused_rows(recipe)
    refuse_unused_scoring(recipe, [recipe.method, *(compare or [])], given)
    plot = output.with_suffix(".png")
    _require_outputs(output, plot if compare else None)
    scores = score_checkpoint(recipe, console)
    write_json(output, scores.to_json())
    lines = [f"{scores.signature}, {scores.cost['seconds']:.1f} s; scores in {output}", ""]
    width = max(len(name) for name in scores.values)
    for name, values in scores.values.items():
        lines.append(f"{name:<{width}}  " + " ".join(f"{value:9.3g}" for value in values))
    data = {"output": str(output), **scores.to_json()}
    if compare:
        others = [
            score_checkpoint(recipe.model_copy(update={"method": other}), console)
            for other in compare
        ]
        found = compare_scores([scores, *others])
        comparison_plot([scores, *others], plot)
        lines += ["", comparison_table(found), f"plot: {plot}"]
        data |= {"comparison": found, "plot": str(plot)}
    console.result("\n".join(lines), data)
    return 0


def _require_outputs(output: Path, plot: Path | None) -> None:
    """Refuse, before anything is computed, to write where another file is."""
    from compressor.files import require_file
    from compressor.importance.compare import is_comparison_plot
    from compressor.pipeline.single_steps import read_scores

    def is_scores(path: Path) -> bool:
        try:
            read_scores(path)
        except InputError:
            return False
        return True

    require_file(output, "a scores file", is_scores)
    if plot is None:
        return
    if output.suffix.lower() == plot.suffix:
        raise UsageError(
            f"--output {output} is where the plot of --compare goes; give it another ending, as in "
            f"{output.with_suffix('.json')}",
            id="scores-and-plot-in-one-file",
        )
    require_file(plot, "a plot of scores", is_comparison_plot)
