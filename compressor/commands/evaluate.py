"""`compress evaluate`: quality of exported artifacts, the first being what others compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console


def register(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)


def evaluate(
    artifacts: Annotated[
        list[Path], typer.Argument(help="Directories with onnx/; the first is the reference.")
    ],
    test: Annotated[str, typer.Option("--test", help="Rows to measure quality on.")],
    precision: o.MeasuredPrecision = None,
    num_beams: o.NumBeams = None,
    device: o.Device = None,
    seed: o.Seed = None,
    resamples: Annotated[int, typer.Option("--resamples", min=100)] = 1000,
    source_column: o.SourceColumn = None,
    target_column: o.TargetColumn = None,
    text_column: o.TextColumn = None,
    text_pair_column: o.TextPairColumn = None,
    label_column: o.LabelColumn = None,
    test_rows: o.MeasuredRows = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> int:
    """Measure BLEU and chrF, or accuracy, of artifacts on the same rows."""
    from compressor.pipeline.compare_artifacts import evaluate_artifacts
    from compressor.report import numbers

    columns = {
        "source_column": source_column, "target_column": target_column,
        "text_column": text_column, "text_pair_column": text_pair_column,
        "label_column": label_column, "limit": test_rows,
    }  # fmt: skip
    found = evaluate_artifacts(
        artifacts, test, columns, precisions=o.parse_precisions(precision),
        device=device or "auto", num_beams=num_beams,
        resamples=resamples, seed=seed or 0, progress=console,
    )  # fmt: skip
    lines = []
    for result in found:
        metrics = ", ".join(f"{name} {value:.2f}" for name, value in result.quality.metrics.items())
        lines.append(
            f"{result.directory} ({result.precision}): {metrics} ({result.quality.rows} rows)"
        )
        for x in result.comparisons:
            low, high = x.interval
            change = f"{x.difference:+.2f} [{low:+.2f}, {high:+.2f}]"
            lines.append(f"  {x.metric} {change}, {numbers.p_equation(x.p_value)}")
    signatures = found[0].quality.signatures
    lines += [f"{metric}: {signature}" for metric, signature in signatures.items()]
    console.result("\n".join(lines), {"artifacts": [result.model_dump() for result in found]})
    return 0
