"""Every option of a run, each declared once: a section for each stage of the journey.

`compressor.request.recipe` composes the sections to recipes and to what single commands take.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from compressor.budgets.counts import Proof, is_number
from compressor.errors import UsageError
from compressor.export.precision_names import BASE, split_precisions
from compressor.options.bounds import (
    MINIMUM_ROWS,
    MOST_BEAMS,
    MOST_CHARACTERS,
    MOST_RESAMPLES,
    MOST_SECONDS,
    MOST_STEPS,
    MOST_THREADS,
    MOST_TOKENS,
    BatchSize,
)  # fmt: skip
from compressor.options.declare import Section, option
from compressor.results import Inconclusive

Lengths = Literal["data"] | Annotated[int, Field(ge=1, le=MOST_TOKENS)]
VERIFY = option(True, help="Check the files against manifest.json first.")


class Access(Section):
    """Which version of a checkpoint, and what loading it may do."""

    revision: str | None = option(None, help="Branch, tag or commit of a hub model.")
    allow_pickle: bool = option(False, help="Load weights that exist only as pytorch_model.bin.")
    trust_remote_code: bool = option(False, help="Let the checkpoint run its own code.")
    verify: bool = VERIFY

    def access(self) -> dict[str, Any]:
        """How to open a checkpoint, as keywords."""
        return {name: getattr(self, name) for name in Access.model_fields}


class ModelSection(Access):
    """Which checkpoint."""

    path: str = option(
        flag="--model", short="-m", help="Checkpoint: a local directory or a hub id."
    )


class RunModelSection(ModelSection):
    """Which checkpoint a whole run starts from."""

    task: str | None = option(
        None, short="-t", help="translation or classification; follows from the model."
    )


class Columns(Section):
    """Which columns of a file of rows are read."""

    source_column: str | None = option(None, help="Translation: default: the first column.")
    target_column: str | None = option(None, help="Translation: default: the second column.")
    text_column: str | None = option(None, help="Classification: default: text, or the first.")
    text_pair_column: str | None = option(None, help="Second text, for classifying pairs.")
    label_column: str | None = option(None, help="Classification: default: label, or the second.")
    header: bool = option(
        True, help="The first line of a table names its columns. --no-header: they are 1, 2, ..."
    )

    def columns(self) -> dict[str, Any]:
        """How to read rows, as keywords: the names of columns, and whether there is a header."""
        return {name: getattr(self, name) for name in Columns.model_fields}


class CalibrationData(Columns):
    """Rows to score, learn and repair on."""

    calibration: str | None = option(
        None, help="Rows to score on: TSV, CSV, JSONL, or SRC,TGT text files."
    )
    calibration_rows: int | None = option(
        None, needs="calibration", ge=MINIMUM_ROWS, help="Use only the first N, at least 8."
    )


class Data(CalibrationData):
    """Calibration rows, and rows to measure on."""

    test: str | None = option(None, help="Rows to measure quality and speed on.")
    test_rows: int | None = option(
        None, needs="test", ge=MINIMUM_ROWS, help="Use only the first N, at least 8."
    )


class TestData(Columns):
    """Rows to measure finished artifacts on; two are enough."""

    test: str = option(help="Rows to measure on.")
    test_rows: int | None = option(None, ge=2, help="Use only the first N.")


Prune = Literal["heads", "neurons", "both"]
_PRUNE_HELP = "Which units go: heads, neurons or both."


class _Units(Section):
    floor: str | None = option(
        None,
        help="Units each sublayer keeps at least: 1 (head), or cross=2,neurons=64. Default: 1 head "
        "where heads are counted, else 0.",
    )
    multiple: str | None = option(
        None, help="Units go in groups: 64 (neurons), or heads=2,neurons=64. Default: 32 neurons."
    )

    @field_validator("floor", "multiple", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if isinstance(text, str) and len(text) > MOST_CHARACTERS:
            raise ValueError(f"a text of {len(text):,} characters is too long")
        return text


class _Mixed(_Units):
    """Budgets for which heads and neurons compete."""

    prune: Prune = option("both", help=_PRUNE_HELP)


def _texts(value: Any) -> Any:
    """A value or a list of them, as texts: in a file `keep: 0.5` will do."""
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if not isinstance(part, str | int | float):
            raise ValueError("write a number, a text, or a list of them")
        if isinstance(part, str) and len(part) > MOST_CHARACTERS:
            raise ValueError(f"a text of {len(part):,} characters is too long")
    return [str(part) for part in parts]


class Counts(_Units):
    """So many units, or a fraction of them."""

    name: Literal["counts"] = "counts"
    keep: list[str] = option(
        [],
        selects=True,
        help="Heads to keep: 0.5, 36; or heads=0.7,neurons=0.5; or cross=0.8,encoder_ffn=0.3. "
        "Repeat for several budgets.",
    )
    remove: list[str] = option([], selects=True, help="Units to remove, written like --keep.")

    _as_texts = field_validator("keep", "remove", mode="before")(_texts)

    @model_validator(mode="after")
    def _says_how_many(self) -> Counts:
        if not self.keep and not self.remove:
            raise UsageError(
                "say how many units to keep, for example --keep heads=0.7,neurons=0.5",
                id="budget-missing",
            )
        return self


class SteppedCounts(Counts):
    """So many units, or a fraction of them, at once or in steps; several budgets in one run."""

    steps: int = option(
        1, ge=1, le=MOST_STEPS, help="Remove in so many steps; scores anew before each."
    )


class Macs(_Mixed):
    """A share of the dense model's multiply-adds, heads and neurons by error per cost."""

    name: Literal["macs"] = "macs"
    macs: list[float] = option(
        min_length=1,
        selects=True,
        help="Share of the dense model's multiply-adds to keep, as in 0.5; several: 0.7,0.5,0.3.",
    )
    steps: int = option(
        1, ge=1, le=MOST_STEPS, help="Remove in so many steps; scores anew before each."
    )

    @field_validator("macs", mode="before")
    @classmethod
    def _shares(cls, value: Any) -> Any:
        values = value if isinstance(value, list) else [value]
        return [part for x in values for part in (x.split(",") if isinstance(x, str) else [x])]

    @field_validator("macs")
    @classmethod
    def _between_0_and_1(cls, value: list[float]) -> list[float]:
        for share in value:
            if not 0 < share < 1:
                raise UsageError(
                    f"--macs {share:g} is not a share of the multiply-adds; give a number between "
                    "0 and 1, as in --macs 0.5",
                    id="option-invalid",
                )
        return value


class Speedup(_Mixed):
    """As few units as make the model so many times as fast on this machine."""

    name: Literal["speedup"] = "speedup"
    speedup: float = option(
        gt=1,
        allow_inf_nan=False,
        selects=True,
        help="Instead of units to keep: 1.3 times as fast on this machine.",
    )
    at_batch: BatchSize = option(16, help="Batch size of --speedup.")


class MaxDrop(_Mixed):
    """As few units as lose no more than this of the main metric."""

    name: Literal["max-drop"] = "max-drop"
    max_drop: float = option(
        ge=0,
        allow_inf_nan=False,
        selects=True,
        splits=is_number,
        help="0.3: budget, the smallest model whose BLEU or accuracy on held-out test rows is "
        "shown to fall by at most 0.3. bleu=0.5: gate, a metric may fall by at most this.",
    )
    drop_proof: Proof = option(
        "bound",
        help="What shows it: bound (the lower confidence bound is within --max-drop) or measured "
        "(the measured drop is).",
    )

    @field_validator("max_drop", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        if isinstance(value, list):
            if len(value) != 1:
                raise UsageError(
                    f"--max-drop {', '.join(map(str, value))}: a run has one drop as its budget; "
                    "give one number",
                    id="options-exclude-each-other",
                )
            value = value[0]
        if is_number(str(value)) and not 0 <= float(value) < math.inf:
            raise UsageError(
                f"--max-drop {value}: a drop is a number from 0 up, as in --max-drop 0.3",
                id="option-invalid",
            )
        return value


class Penalty(_Units):
    """As many units as a penalty on open gates leaves (hard concrete gates)."""

    name: Literal["penalty"] = "penalty"
    penalty: float = option(
        gt=0,
        allow_inf_nan=False,
        selects=True,
        help="hard-concrete: lambda, nats per open head, instead of heads to keep.",
    )


Budget = SteppedCounts | Macs | Speedup | MaxDrop | Penalty


class Export(Section):
    """The graphs to write."""

    precision: list[str] = option(
        [BASE],
        help="fp32 (default), fp32,int8, fp32,fp16, or auto: int8 for the CPU, fp16 for CUDA.",
    )
    target_text: str | None = option(
        None,
        help="Text in the target language, a sentence a line: exported decoders score only tokens "
        "that occur in it, or that anything can be spelt with.",
    )

    @field_validator("precision", mode="before")
    @classmethod
    def _names(cls, value: Any) -> list[str]:
        return split_precisions(value)


class Evaluation(Section):
    """How quality is measured."""

    num_beams: int | None = option(
        None, ge=1, le=MOST_BEAMS, help="Beam width; the checkpoint's own by default."
    )
    resamples: int = option(1000, ge=100, le=MOST_RESAMPLES, help="Bootstrap resamples.")


class Benchmark(Section):
    """How throughput is measured."""

    batch_size: list[BatchSize] = option(
        [1, 4, 16, 64], short="-b", min_length=1, help="Batch sizes to measure, as in 1,16,64."
    )
    lengths: Lengths = option("data", help="Source lengths to time: data or a token count.")
    target_length: int | None = option(
        None, ge=1, le=MOST_TOKENS, help="Tokens to generate when timing; default: the data's mean."
    )
    seconds: float = option(
        3.0,
        flag="--bench-seconds",
        gt=0,
        le=MOST_SECONDS,
        allow_inf_nan=False,
        help="Least time per model and batch size.",
    )
    threads: int | None = option(None, ge=1, le=MOST_THREADS, help="CPU threads of the runtime.")

    @field_validator("batch_size", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:
        """In a file also in the form of the option, `1,4,16`."""
        values = value if isinstance(value, list) else [value]
        parts = [part for x in values for part in (x.split(",") if isinstance(x, str) else [x])]
        short = (isinstance(x, str) and x.strip().isdecimal() and len(x) < 20 for x in parts)
        return [int(x) if is_short else x for x, is_short in zip(parts, short, strict=True)]

    @field_validator("batch_size")
    @classmethod
    def _different(cls, value: list[int]) -> list[int]:
        twice = [size for size in value if value.count(size) > 1]
        if twice:
            raise UsageError(
                f"--batch-size {','.join(map(str, value))} names {twice[0]} twice; name each size "
                "once",
                id="batch-size-twice",
            )
        return value


Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class Gate(Section):
    """Rules that the smaller model must meet; the run ends with status 1 if it does not."""

    max_drop: list[str] = option(
        [],
        splits=lambda text: not is_number(text),
        help="Gate: a metric may fall by at most this, as in bleu=0.5.",
    )
    min_speedup: list[str] = option([], help="Gate: 1.1@16 (at batch 16) or 1.1 (at every batch).")
    max_size_mb: float | None = option(
        None, gt=0, allow_inf_nan=False, help="Gate: megabytes of the ONNX files at most."
    )
    max_macs: Share | None = option(
        None, help="Gate: multiply-adds at most, as a share of dense: 0.5."
    )
    max_parameters: Share | None = option(
        None, help="Gate: parameters at most, as a share of dense: 0.5."
    )
    inconclusive: Inconclusive = option(
        "fail",
        help="Gate: what a rule counts as whose limit is inside the confidence interval: fail, "
        "pass, or measured (as the measured number says).",
    )

    _as_texts = field_validator("max_drop", "min_speedup", mode="before")(_texts)

    @model_validator(mode="after")
    def _can_be_inconclusive(self) -> Gate:
        if self.inconclusive != "fail" and not self.max_drop and not self.min_speedup:
            raise UsageError(
                f"--inconclusive {self.inconclusive} is for rules about what is measured with an "
                "interval; give --max-drop or --min-speedup, or leave it out",
                id="option-without-use",
            )
        return self


SEED = option(0, ge=0, lt=2**32, help="Of everything random.")
DEVICE = option("auto", help="auto, cpu or cuda.")
Device = Literal["auto", "cpu", "cuda"]
