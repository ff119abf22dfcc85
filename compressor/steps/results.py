"""The typed results of a run's steps, which reports, gates and manifests read.

Each can be written as JSON and read back. Units are in the field names; ratios are pruned over
dense where larger is better for pruned. Results never change: a step that adds something returns
a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    SerializationInfo,
    ValidationInfo,
)

from compressor.storage.names import ONNXRUNTIME

# Name of the check of fp16 graphs that is a share of what float16 can hold, not of a logit.
HALF_RANGE = "values within float16's range"
FROM_FILE = {"file": True}  # validation context of what is read from a file
# In binary floating point a drop of exactly 0.5 may come out as 0.5000000000000071.
ROUNDING = 1e-9


def _checked_number(value: Any, info: ValidationInfo) -> Any:
    """The value; ValueError for truth values, which pydantic takes for 0 and 1.

    In a file also for text but `NaN`, and for numbers from 2^63 on, infinities included.
    """
    refused = isinstance(value, bool)
    if info.context and isinstance(value, str):
        refused = value != "NaN"
    elif info.context and isinstance(value, int | float):
        refused = refused or abs(value) >= 2**63
    if refused:
        raise ValueError(f"{str(value)[:40]!r} is not a number")
    return value


def _checked_ratio(value: Any, info: ValidationInfo) -> Any:
    """The value, a number or infinity: a pruned model may have no multiply-adds left."""
    return value if value in ("Infinity", math.inf) else _checked_number(value, info)


def _record_path(path: Path, info: SerializationInfo) -> str:
    """The path as a record has it: changed by `RECORDED` of the context, if there is one."""
    recorded: Callable[[Path], Path] = (info.context or {}).get(RECORDED, Path)
    return recorded(path).as_posix()


def _read_path(path: Path, info: ValidationInfo) -> Path:
    read: Callable[[Path], Path] = (info.context or {}).get(READ, Path)
    return read(path)


# Contexts of serialization and validation: from a path to the one in a record, and back.
RECORDED, READ = "recorded", "read"
# A path in an output directory. Records have it relative to the directory, which may be moved.
OutputPath = Annotated[Path, PlainSerializer(_record_path), AfterValidator(_read_path)]

# JSON has no NaN; as the string "NaN" it can be written and read back.
Number = Annotated[float, BeforeValidator(_checked_number)]
Ratio = Annotated[float, BeforeValidator(_checked_ratio)]
Whole = Annotated[int, BeforeValidator(_checked_number)]
Interval = tuple[Number, Number]


class ResultModel(BaseModel):
    """Base of all results; unknown keys are errors, so that a mistyped key is not lost."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), ser_json_inf_nan="strings"
    )


class LongSources(ResultModel):
    """The main metric of one model on the test rows with long sources alone."""

    words: Whole  # each of these sources has more
    rows: Whole
    score: Number | None = None  # None where these rows are too few


class Quality(ResultModel):
    """Metric values of one model on the test rows, on the metric's own scale (BLEU 0-100)."""

    metrics: dict[str, Number]
    signatures: dict[str, str]
    rows: Whole
    long_sources: LongSources | None = None  # of translations
    # Share of translations whose words are over 30 % more or fewer than the dense model's.
    other_lengths: Number | None = None


class Comparison(ResultModel):
    """Pruned minus dense for one metric, paired over the test rows."""

    metric: str
    dense: Number
    pruned: Number
    difference: Number
    interval: Interval  # 95 % percentile interval of the difference
    p_value: Number  # two-sided
    resamples: Whole
    # Rows that only (dense, pruned) has right, of metrics that count rows that are right.
    discordant: tuple[Whole, Whole] | None = None
    floor: Number | None = None  # what chance gives the dense model's answers
    # Whether its score cannot be distinguished from the floor; then nothing is concluded.
    at_floor: bool = False


class Check(ResultModel):
    """One verification: the largest deviation seen and the tolerance it had to meet."""

    name: str
    largest_difference: Number
    tolerance: Number
    detail: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the deviation is within the tolerance; NaN is not."""
        return self.largest_difference <= self.tolerance


class Ranking(ResultModel):
    """How units were ranked: by which method, at what cost, and every unit's score."""

    method: str
    signature: str
    cost: dict[str, Number]
    values: dict[str, list[Number]]


class CandidateFacts(ResultModel):
    """The candidates that a decoder scores by source tokens, and what they miss on other rows."""

    per_token: Whole  # of a source token
    frequent: Whole  # of every batch
    pairs: Whole  # of a source and its translation by the dense model, that were counted
    rows: Whole  # pairs that were not, on which the following is measured
    # Share of the translations' tokens that are no candidates, and mean numbers of candidates, of
    # rows alone and in batches of 16 rows of similar length. None without such rows.
    missed_by_row: Number | None = None
    missed_by_batch: Number | None = None
    per_row: Number | None = None
    per_batch: Number | None = None


class Variant(ResultModel):
    """One model: the dense one (`name="dense"`) or one that lost units."""

    name: str
    directory: str
    budget: str
    kept: dict[str, list[Whole]]  # attention sublayer -> kept heads
    heads: dict[str, Whole]  # attention sublayer -> heads before removal
    neurons: dict[str, Whole]  # feed-forward part -> neurons before removal
    kept_neurons: dict[str, Whole]  # feed-forward part -> how many are kept
    # Tenths of a row's tokens that each encoder layer that is left, but the last, hands on; empty
    # where that is all.
    handed_on: list[Whole] = []
    dropped_layers: list[str] = []  # Transformer layers that are skipped whole, `decoder.2`
    macs_share: Number  # of the dense model's multiply-adds, at the rows' lengths
    parameters: Whole
    checkpoint_bytes: Whole
    onnx_bytes: Whole
    output_tokens: Whole | None = None  # how many a translator's decoder scores
    candidates: CandidateFacts | None = None  # of these; None: it always scores all
    embedding_rows: Whole | None = None  # tokens with an embedding, of the source
    # Of all weights that belong to tokens, in float32: embeddings and output projection.
    embedding_bytes: Whole | None = None
    precision: str
    engine: str = ONNXRUNTIME  # that ran it
    base: str = ""  # name of the float32 model that this is another precision, or engine, of
    default: bool = True  # whether the runtime takes this precision where none is named
    selection: str = ""  # how the units were chosen, in words, where scores alone do not say
    scoring: Ranking | None = None  # where it is not the report's
    recovery: str = ""  # how the kept weights were recovered, in words; empty if they were not
    quality: Quality | None = None
    comparisons: list[Comparison] = []
    base_comparisons: list[Comparison] = []  # with `base` (as `dense`), where that is not dense
    checks: list[Check] = []
    samples: list[str] = []  # answers to the test rows that the report shows

    @property
    def in_default_engine(self) -> bool:
        """Whether the engine that runs every artifact ran it."""
        return self.engine == ONNXRUNTIME

    @property
    def counts(self) -> dict[str, int]:
        """Units left in each sublayer of the dense model."""
        return {name: len(kept) for name, kept in self.kept.items()} | self.kept_neurons

    @property
    def family(self) -> str:
        """Name of the float32 model that this is one precision of."""
        return self.base or self.name


class Timing(ResultModel):
    """One model at one batch size."""

    variant: str
    batch_size: Whole
    source_tokens: Number  # mean real tokens per row
    padded_source_tokens: Number  # mean tokens per row with padding
    target_tokens: Number  # mean generated tokens per row; 0 for classifiers
    runs: Whole
    sentences_per_second: Number
    tokens_per_second: Number  # generated tokens, or real source tokens for classifiers
    latency_ms: dict[Literal["p50", "p90", "p99"], Number]  # of one batch
    peak_memory_mib: Number | None = None
    speedup: Number | None = None  # sentences per second over dense, from the same run
    speedup_interval: Interval | None = None
    macs_ratio: Ratio | None = None  # multiply-adds of dense over this model's, at these lengths
    provider: str | None = None  # what ran it; None for that of the whole measurement
    precision: str | None = None
    engine: str | None = None
    # Where several engines were timed: over the dense model in the same engine (float32 where that
    # was timed), and over `fastest`, the fastest dense build of any engine at this batch size.
    engine_speedup: Number | None = None
    engine_speedup_interval: Interval | None = None
    # Of a model that generates, the encoder's share of the time and of the multiply-adds.
    encoder_time: Number | None = None
    encoder_macs: Number | None = None
    fastest: str | None = None
    fastest_speedup: Number | None = None
    fastest_speedup_interval: Interval | None = None


class Throughput(ResultModel):
    """All timings of one interleaved run."""

    provider: str
    device: str
    precision: str
    threads: Whole
    lengths: str  # how lengths were chosen, in words
    rows: list[Timing]


class Source(ResultModel):
    """A data file: where, how many rows, and a fingerprint of what was used."""

    files: list[str]
    rows: Whole
    sha256: str
    read: str = ""  # columns, quotation marks and labels, as `Rows.read`


class LayerCost(ResultModel):
    """Share of a batch's time that is saved by reducing one sublayer of a kind to `units` units.

    Measured on the model with all sublayers of the kind at `units` and all others dense; where the
    attentions of a stack keep equally many heads, with all of these at `units`.
    """

    kind: str
    units: Whole
    layers: Whole  # that were reduced at once
    speedup: Number  # of that model over dense
    speedup_interval: Interval
    saved_share: Number  # of the dense time, per sublayer; never falls as units go


class CostTable(ResultModel):
    """Measured cost of units at one batch size on one machine."""

    batch_size: Whole
    dense_seconds: Number  # of a batch
    lengths: str  # how lengths were chosen, and what computed, in words
    rows: list[LayerCost]


class SpeedTry(ResultModel):
    """A choice of units that was timed to see whether it reaches the wanted speed-up."""

    aim: Number  # the speed-up that was asked of the cost table
    predicted: Number  # by the cost table for the units chosen
    kept: str  # units, in words
    speedup: Number  # measured
    speedup_interval: Interval
    met: bool


def delivered(tries: Sequence[SpeedTry]) -> SpeedTry:
    """The slowest choice that reached the wanted speed-up; the fastest where none did."""
    met = [choice for choice in tries if choice.met]
    if met:
        return min(met, key=lambda choice: choice.speedup)
    return max(tries, key=lambda choice: choice.speedup)


class LayersTry(ResultModel):
    """A choice of units for the wanted speed-up after some whole layers were dropped."""

    layers: list[str]  # in the order in which they went, `decoder.2`
    kept: str = ""  # units; none where no choice is fast enough
    speedup: Number | None = None  # over dense, measured
    # From the dense model on held-out rows, nats per loss term, after the recovery: with
    # `SpeedSearch.probe_steps` of training. None where the wanted speed-up was missed.
    divergence: Number | None = None


class SpeedSearch(ResultModel):
    """A search for units that reach a speed-up: their costs, and the choices that were timed."""

    wanted: Number
    costs: CostTable
    tries: list[SpeedTry]
    layers: list[LayersTry] = []  # where the dropped layers were searched
    probe_steps: Whole = 0  # of the short training of each of them


class QualityCandidate(ResultModel):
    """A smaller model that was built, answered test rows, and was judged by them."""

    kept: Whole  # heads
    neurons: Whole  # kept, as heads
    # As of a `Variant`; also where they are all handed on, if they need not be.
    handed_on: list[Whole] = []
    macs: Number  # share of the dense model's multiply-adds
    position: Whole  # on the path of cuts, the dense model being 0
    comparison: Comparison
    bound: Number  # lower confidence bound of the difference
    confidence: Number  # of the bound, one-sided
    rows_needed: Whole | None = None  # for a bound within the limit; None where none are enough
    accepted: bool


class QualitySearch(ResultModel):
    """A search for the smallest model whose main metric fell by no more than `drop`."""

    drop: Number
    metric: str
    proof: Literal["bound", "measured"]  # what a probe must show to be accepted
    rows: Source  # that probes were judged on
    probes: list[QualityCandidate]  # in the order they were made
    held_out: Whole  # rows that looks, and all final figures, were measured on
    looks: list[QualityCandidate]  # in the order they were made
    delivered: Whole  # position of the look that is the delivered model
    proven: bool  # whether its bound on the held-out rows is within the limit


Verdict = Literal["passed", "failed", "inconclusive"]


class Outcome(ResultModel):
    """One gate rule and its verdict."""

    rule: str
    variant: str
    met: bool  # an inconclusive rule as `--inconclusive` says
    message: str
    verdict: Verdict
    measured: Number | None = None
    interval: Interval | None = None  # confidence bounds; None of exact numbers
    limit: Number | None = None  # on the scale of `measured`
    enough: Whole | None = None  # rows, or timed batches, that are about needed to decide
