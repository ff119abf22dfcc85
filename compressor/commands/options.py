"""Options that several commands share, each declared once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from compressor.commands.console import console
from compressor.errors import UsageError


def _quiet(value: bool) -> bool:
    console.quiet = value
    return value


def _verbose(value: bool) -> bool:
    console.verbose = value
    return value


def _json(value: bool) -> bool:
    console.as_json = value
    return value


def _positive_seconds(value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise UsageError(f"--bench-seconds {value:g}: give a number of seconds above 0")
    return value


def parse_numbers(text: str | None, option: str) -> list[int] | None:
    """`1,4,16` as numbers.

    Raises:
        UsageError: something in it is not a positive whole number.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"{option} {text!r}: write positive whole numbers, as in {option} 1,4,16")
    return [int(part) for part in parts]


def parse_precisions(values: list[str] | None) -> list[str] | None:
    """Names of precisions to run artifacts in; None if none are given.

    Raises:
        UsageError: an unknown name, one given twice, or `auto`, which is for exporting.
    """
    if not values:
        return None
    from compressor.export.precision_names import AUTO, split_precisions

    names = split_precisions(values)
    if names == [AUTO]:
        raise UsageError(
            "--precision auto is for `compress run` and `compress export`; name the precisions to "
            "run, or leave it out for each artifact's default"
        )
    return names


Model = Annotated[
    str | None, typer.Option("-m", "--model", help="Checkpoint: a local directory or a hub id.")
]
Output = Annotated[Path, typer.Option("-o", "--output", help="Directory to write to.")]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", callback=_quiet, help="Only the result, no messages.")
]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", callback=_verbose, help="Also how long each stage took.")
]
Json = Annotated[
    bool, typer.Option("--json", callback=_json, help="The result as one JSON object on stdout.")
]
Revision = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit of a hub model.")
]
AllowPickle = Annotated[
    bool | None,
    typer.Option("--allow-pickle", help="Load weights that exist only as pytorch_model.bin."),
]
TrustRemoteCode = Annotated[
    bool | None,
    typer.Option("--trust-remote-code", help="Let the checkpoint run its own code."),
]
Calibration = Annotated[
    str | None,
    typer.Option("--calibration", help="Rows to score on: TSV, CSV, JSONL, or SRC,TGT text files."),
]
Test = Annotated[str | None, typer.Option("--test", help="Rows to measure quality and speed on.")]
TargetText = Annotated[
    str | None,
    typer.Option(
        "--target-text",
        help="Text in the target language, a sentence a line: exported decoders score only tokens "
        "that occur in it, or that anything can be spelt with.",
    ),
]
CalibrationRows = Annotated[
    int | None, typer.Option("--calibration-rows", help="Use only the first N, at least 8.")
]
TestRows = Annotated[
    int | None, typer.Option("--test-rows", help="Use only the first N, at least 8.")
]
# Where an artifact is measured by itself, for which two rows are enough.
MeasuredRows = Annotated[
    int | None, typer.Option("--test-rows", min=2, help="Use only the first N.")
]
SourceColumn = Annotated[str | None, typer.Option("--source-column", help="Default: the first.")]
TargetColumn = Annotated[str | None, typer.Option("--target-column", help="Default: the second.")]
TextColumn = Annotated[
    str | None, typer.Option("--text-column", help="Default: text, or the first.")
]
TextPairColumn = Annotated[
    str | None, typer.Option("--text-pair-column", help="Second text, for tasks on pairs.")
]
LabelColumn = Annotated[
    str | None, typer.Option("--label-column", help="Default: label, or the second.")
]
Task = Annotated[
    str | None,
    typer.Option("-t", "--task", help="translation or classification; follows from the model."),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="How to score heads: second-order (default), taylor, fisher, ablation, confidence, "
        "relevance, magnitude, random.",
    ),
]
MethodOrLearned = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="How to find the heads to keep. Scores: second-order (default), taylor, fisher, "
        "ablation, confidence, relevance, magnitude, random. Learned masks: hard-concrete, subset.",
    ),
]
TrainWeights = Annotated[
    str | None,
    typer.Option(
        "--train-weights", help="Learned masks: train along none (default), encoder or all weights."
    ),
]
Estimator = Annotated[
    str | None,
    typer.Option("--estimator", help="subset: gumbel (default) or straight-through."),
]
Penalty = Annotated[
    float | None,
    typer.Option(
        "--penalty", help="hard-concrete: lambda, nats per open head, instead of heads to keep."
    ),
]
GateEpochs = Annotated[
    int | None, typer.Option("--gate-epochs", min=1, help="Learned masks: epochs. Default: 20.")
]
GateLearningRate = Annotated[
    float | None,
    typer.Option("--gate-learning-rate", help="Learned masks: of the gates; default: by method."),
]
DistillEpochs = Annotated[
    int | None, typer.Option("--distill-epochs", min=1, help="Distillation: at most. Default: 5.")
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--learning-rate",
        help="Of weights that are trained. Default: 0.0001 for "
        "translators, 0.00005 for classifiers.",
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(
        "--patience", min=1, help="Training stops after so many epochs without gain. Default: 2."
    ),
]
Per = Annotated[
    str | None,
    typer.Option(
        "--per",
        help="taylor, relevance: scores per token (default) or per example; which one the papers "
        "have: docs/methods.md.",
    ),
]
Recover = Annotated[
    str | None,
    typer.Option(
        "--recover",
        help="Repair after the cut: reconstruct (default; least squares), none, distill (train "
        "on the dense model's predictions), or reconstruct+distill.",
    ),
]
Normalize = Annotated[
    str | None, typer.Option("--normalize", help="Divide by the layer's L2 norm: layer or none.")
]
Ablate = Annotated[
    str | None,
    typer.Option(
        "--ablate", help="ablation: measure the loss (default) or the metric, BLEU or accuracy."
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        help="Heads to keep: 0.5, 36, or encoder_self=0.3,cross=0.8. Repeat for several budgets.",
    ),
]
Remove = Annotated[
    list[str] | None, typer.Option("--remove", help="Heads to remove, written like --keep.")
]
Floor = Annotated[
    str | None,
    typer.Option("--floor", help="Heads each layer keeps at least: 1 (default), 0, or cross=2."),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, max=2**32 - 1, help="Of everything random. Default: 0."),
]
Precision = Annotated[
    list[str] | None,
    typer.Option(
        "--precision",
        help="fp32 (default), fp32,int8, fp32,fp16, or auto: int8 for the CPU, fp16 for CUDA.",
    ),
]
Layout = Annotated[
    str,
    typer.Option(
        "--layout",
        help="compress: OUTPUT/onnx for this tool's runtime; optimum: OUTPUT for the ONNX Runtime "
        "loaders of Hugging Face optimum (fp32).",
    ),
]
MeasuredPrecision = Annotated[
    list[str] | None,
    typer.Option(
        "--precision", help="Precisions to run, as in fp32,int8; each artifact's default if none."
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="auto (default), cpu or cuda.")]
NumBeams = Annotated[
    int | None,
    typer.Option("--num-beams", min=1, help="Beam width; the checkpoint's own by default."),
]
BatchSize = Annotated[
    str | None, typer.Option("-b", "--batch-size", help="To measure, default 1,4,16,64.")
]
Lengths = Annotated[
    str | None,
    typer.Option("--lengths", help="Source lengths to time: data (default) or a token count."),
]
TargetLength = Annotated[
    int | None,
    typer.Option(
        "--target-length", min=1, help="Tokens to generate when timing; default: the data's mean."
    ),
]
BenchSeconds = Annotated[
    float | None,
    typer.Option(
        "--bench-seconds",
        callback=_positive_seconds,
        help="Least time per model and batch size. Default: 3.",
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads of the runtime.")
]
MaxDrop = Annotated[
    list[str] | None,
    typer.Option("--max-drop", help="Gate: a metric may fall by at most this, as in bleu=0.5."),
]
MaxDropOrBudget = Annotated[
    list[str] | None,
    typer.Option(
        "--max-drop",
        help="0.3: budget, the fewest heads whose drop in BLEU or accuracy the test rows do not "
        "show to be above 0.3 (whole 95% interval). bleu=0.5: gate, a metric may fall by at most "
        "this.",
    ),
]
Speedup = Annotated[
    float | None,
    typer.Option("--speedup", help="Instead of heads to keep: 1.3 times as fast on this machine."),
]
AtBatch = Annotated[
    int | None, typer.Option("--at-batch", min=1, help="Batch size of --speedup. Default: 16.")
]
MinSpeedup = Annotated[
    list[str] | None,
    typer.Option("--min-speedup", help="Gate: 1.1@16 (at batch 16) or 1.1 (at every batch)."),
]

# Of the commands that stream lines through an artifact.
Artifact = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="What `compress run` or `compress export` wrote, with onnx/ in it."
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", help="One text per line; standard input by default, or -."),
]
LinesOutput = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="A new file, instead of standard output."),
]
RowsPerBatch = Annotated[
    int | None, typer.Option("-b", "--batch-size", min=1, help="Rows per batch at most.")
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        "--batch-tokens",
        min=1,
        help="Rows x longest row of a batch at most, in tokens. "
        "Default without -b: 1024 on CPU, 4096 on CUDA.",
    ),
]
ChunkLines = Annotated[
    int | None,
    typer.Option(
        "--chunk-lines",
        min=1,
        help="Lines to read ahead and sort by length. Default: 2048, and 1 on a terminal.",
    ),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option("--max-new-tokens", min=1, help="Longest translation; the model's by default."),
]
RuntimePrecision = Annotated[
    str | None,
    typer.Option("--precision", help="One that was exported; the artifact's default otherwise."),
]
Jsonl = Annotated[
    bool, typer.Option("--jsonl", help="One JSON object per line instead of plain text.")
]
