"""`compress run`: a checkpoint goes in, a checked and measured artifact comes out."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compressor.commands import options as o
from compressor.commands.console import console

if TYPE_CHECKING:
    from compressor.pipeline.recipe import Recipe


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    output: o.Output,
    model: o.Model = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="YAML recipe; flags win over it.")
    ] = None,
    keep: o.Keep = None,
    remove: o.Remove = None,
    speedup: o.Speedup = None,
    at_batch: o.AtBatch = None,
    calibration: o.Calibration = None,
    test: o.Test = None,
    task: o.Task = None,
    method: o.MethodOrLearned = None,
    per: o.Per = None,
    normalize: o.Normalize = None,
    ablate: o.Ablate = None,
    floor: o.Floor = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Steps; scores anew before each.")
    ] = None,
    recover: o.Recover = None,
    train_weights: o.TrainWeights = None,
    estimator: o.Estimator = None,
    penalty: o.Penalty = None,
    gate_epochs: o.GateEpochs = None,
    gate_learning_rate: o.GateLearningRate = None,
    distill_epochs: o.DistillEpochs = None,
    learning_rate: o.LearningRate = None,
    patience: o.Patience = None,
    batch_size: o.BatchSize = None,
    lengths: o.Lengths = None,
    target_length: o.TargetLength = None,
    bench: Annotated[
        bool | None, typer.Option("--bench/--no-bench", help="Measure throughput, or not.")
    ] = None,
    bench_seconds: o.BenchSeconds = None,
    threads: o.Threads = None,
    num_beams: o.NumBeams = None,
    resamples: Annotated[
        int | None, typer.Option("--resamples", help="Bootstrap resamples. Default: 1000.")
    ] = None,
    max_drop: o.MaxDropOrBudget = None,
    min_speedup: o.MinSpeedup = None,
    target_text: o.TargetText = None,
    precision: o.Precision = None,
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
    """Score heads, remove them, export to ONNX, check, evaluate, time, and report."""
    given = dict(locals())
    from compressor.pipeline.recipe import build_recipe, parse_lengths
    from compressor.pipeline.validate import refuse_unused_scoring

    for name in ("output", "config", "quiet", "verbose", "as_json"):
        del given[name]
    given["batch_size"] = o.parse_numbers(batch_size, "--batch-size")
    given["lengths"] = parse_lengths(lengths)
    recipe = build_recipe(given, config)
    if config is None:
        refuse_unused_scoring(recipe, [recipe.method], given)
    return execute(recipe, output)


def execute(recipe: Recipe, output: Path) -> int:
    """Run a recipe, print the short table, and return the gate's exit status."""
    from compressor.pipeline.run import run as run_pipeline
    from compressor.report.rules import exit_status
    from compressor.report.summary import short_table, summary

    command = shlex.join(["compress", *sys.argv[1:]])
    report = run_pipeline(recipe, output, command, console)
    console.message(f"\nreport: {output / 'report.html'}\n")
    console.result(short_table(report), {"output": str(output), **summary(report)})
    return exit_status(report.gate)
