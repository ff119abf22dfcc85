"""The typed results of a run's stages, which reports, gates and manifests read.

Each can be written to JSON and read back. Units are in the field names; ratios are pruned over
dense where larger is better for pruned. Results never change: a stage that adds something returns
a copy.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationInfo,
    model_validator,
)

# Name of the check of fp16 graphs that is a share of what float16 can hold, not of a logit.
HALF_RANGE = "values within float16's range"
FROM_FILE = {"file": True}  # validation context of what is read from a file
# In binary floating point a drop of exactly 0.5 may come out as 0.5000000000000071.
ROUNDING = 1e-9
# With fewer draws a bootstrap's interval may lie anywhere.
_DRAWS_THAT_TELL = 100


def _is_number(value: Any, info: ValidationInfo) -> Any:
    """Refuse truth values, which pydantic takes for 0 and 1; of a file also infinities."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number")
    if info.context:
        if isinstance(value, str) and value != "NaN":
            raise ValueError(f"{value[:40]!r} is a text, not a number")
        if isinstance(value, float) and math.isinf(value):
            raise ValueError("an infinite number")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError("a number of more than 63 bits")
    return value


def _is_ratio(value: Any, info: ValidationInfo) -> Any:
    """A number, or infinity: over the multiply-adds of a pruned model that has none left."""
    return value if value in ("Infinity", math.inf) else _is_number(value, info)


def _at_least_zero(value: float) -> float:
    if value < 0:
        raise ValueError(f"{value:g} is negative")
    return value


def _at_most_all(value: float) -> float:
    if value > 1 and differ(value, 1):
        raise ValueError(f"{value:g} is a share of more than all")
    return value


def _ascending(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise ValueError(f"the interval [{ends[0]:g}, {ends[1]:g}] is reversed")
    return ends


def differ(first: float, second: float) -> bool:
    """Whether numbers differ by more than rounding; NaN differs from nothing."""
    return abs(first - second) > 1e-6 * max(1, abs(first), abs(second))


def _outside(value: float, interval: tuple[float, float]) -> float:
    return max(interval[0] - value, value - interval[1])


def _far_outside(what: str, value: float, interval: tuple[float, float]) -> str:
    return f"the {what} {value:g} lies far outside its interval [{interval[0]:g}, {interval[1]:g}]"


# JSON has no NaN; as the string "NaN" it can be written and read back.
Number = Annotated[float, BeforeValidator(_is_number)]
Ratio = Annotated[float, BeforeValidator(_is_ratio), AfterValidator(_at_least_zero)]
Whole = Annotated[int, BeforeValidator(_is_number)]
Amount = Annotated[Number, AfterValidator(_at_least_zero)]
Share = Annotated[Amount, AfterValidator(_at_most_all)]
Count = Annotated[Whole, AfterValidator(_at_least_zero)]
Interval = Annotated[tuple[Number, Number], AfterValidator(_ascending)]


class ResultModel(BaseModel):
    """Base of all results; unknown keys are errors, so that a mistyped key is not lost."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), ser_json_inf_nan="strings"
    )


class Quality(ResultModel):
    """Metric values of one model on the test rows, on the metric's own scale (BLEU 0-100)."""

    metrics: dict[str, Number]
    signatures: dict[str, str]
    rows: Count


class Comparison(ResultModel):
    """Pruned minus dense for one metric, paired over the test rows."""

    metric: str
    dense: Number
    pruned: Number
    difference: Number
    interval: Interval  # 95 % percentile interval of the difference
    p_value: Share  # two-sided
    resamples: Count
    # Rows that only (dense, pruned) has right, of metrics that count rows that are right.
    discordant: tuple[Whole, Whole] | None = None
    floor: Number | None = None  # what chance gives the dense model's answers
    at_floor: bool = False  # whether its score cannot be told from that; then nothing can be said

    @model_validator(mode="after")
    def _numbers_agree(self, info: ValidationInfo) -> Comparison:
        if not info.context:
            return self
        if differ(self.pruned - self.dense, self.difference):
            raise ValueError(
                f"{self.pruned:g} - {self.dense:g} is no difference of {self.difference:g}"
            )
        # Of very few rows a percentile interval need not contain the difference, but is near it.
        width = self.interval[1] - self.interval[0]
        outside = _outside(self.difference, self.interval)
        if self.resamples >= _DRAWS_THAT_TELL and outside > width and differ(outside, width):
            raise ValueError(_far_outside("difference", self.difference, self.interval))
        return self


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


class Variant(ResultModel):
    """One model: the dense one (`name="dense"`) or one that lost units."""

    name: str
    directory: str
    budget: str
    kept: dict[str, list[Whole]]  # attention sublayer -> kept heads
    heads: dict[str, Count]  # attention sublayer -> heads before removal
    neurons: dict[str, Count]  # feed-forward part -> neurons before removal
    kept_neurons: dict[str, Count]  # feed-forward part -> how many are kept
    dropped_layers: list[str] = []  # Transformer layers that are skipped whole, `decoder.2`
    macs_share: Share  # of the dense model's multiply-adds, at the rows' lengths
    parameters: Count
    checkpoint_bytes: Count
    onnx_bytes: Count
    output_tokens: Count | None = None  # how many a translator's decoder scores
    embedding_rows: Count | None = None  # of an encoder's tokens
    embedding_bytes: Count | None = None  # of these rows in float32
    precision: str
    engine: str = "onnxruntime"  # that ran it
    base: str = ""  # name of the float32 model that this is another precision, or engine, of
    default: bool = True  # whether the runtime takes this precision where none is named
    selection: str = ""  # how the units were found, in words, where scores alone do not tell
    scoring: Ranking | None = None  # where it is not the report's
    recovery: str = ""  # how the kept weights were repaired, in words; empty if they were not
    quality: Quality | None = None
    comparisons: list[Comparison] = []
    base_comparisons: list[Comparison] = []  # with `base` (as `dense`), where that is not dense
    checks: list[Check] = []

    @property
    def counts(self) -> dict[str, int]:
        """Units left in each sublayer of the dense model."""
        return {name: len(kept) for name, kept in self.kept.items()} | self.kept_neurons

    @property
    def family(self) -> str:
        """Name of the float32 model that this is one precision of."""
        return self.base or self.name

    @model_validator(mode="after")
    def _units_exist(self) -> Variant:
        if self.kept.keys() != self.heads.keys():
            odd = sorted(self.kept.keys() ^ self.heads.keys())
            raise ValueError(f"variant {self.name!r}: kept and heads differ in the layers {odd}")
        for name, kept in self.kept.items():
            if len(set(kept)) != len(kept) or not all(0 <= x < self.heads[name] for x in kept):
                raise ValueError(
                    f"variant {self.name!r}: kept heads {kept[:99]} of {name} are not distinct "
                    f"numbers below {self.heads[name]}"
                )
        if self.kept_neurons.keys() != self.neurons.keys() or any(
            not 0 <= kept <= self.neurons[name] for name, kept in self.kept_neurons.items()
        ):
            raise ValueError(f"variant {self.name!r}: kept_neurons and neurons do not agree")
        return self

    @model_validator(mode="after")
    def _rows_are_counted_alike(self) -> Variant:
        rows = 0 if self.quality is None else self.quality.rows
        for found in (*self.comparisons, *self.base_comparisons):
            lost, won = found.discordant or (0, 0)
            if min(lost, won) < 0 or (found.discordant and lost + won > rows):
                raise ValueError(
                    f"variant {self.name!r}: {lost} and {won} rows with another answer are not "
                    f"possible on {rows} rows"
                )
        return self


class Timing(ResultModel):
    """One model at one batch size."""

    variant: str
    batch_size: Count
    source_tokens: Amount  # mean real tokens per row
    padded_source_tokens: Amount  # mean tokens per row with padding
    target_tokens: Amount  # mean generated tokens per row; 0 for classifiers
    runs: Count
    sentences_per_second: Amount
    tokens_per_second: Amount  # generated tokens, or real source tokens for classifiers
    latency_ms: dict[Literal["p50", "p90", "p99"], Amount]  # of one batch
    peak_memory_mib: Amount | None = None
    speedup: Amount | None = None  # sentences per second over dense, from the same run
    speedup_interval: Interval | None = None
    macs_ratio: Ratio | None = None  # multiply-adds of dense over this model's, at these lengths
    provider: str | None = None  # what ran it; None where only the whole measurement tells
    precision: str | None = None
    engine: str | None = None
    # Where several engines were timed: over the dense model in the same engine (float32 where that
    # was timed), and over `fastest`, the fastest dense build of any engine at this batch size.
    engine_speedup: Amount | None = None
    engine_speedup_interval: Interval | None = None
    fastest: str | None = None
    fastest_speedup: Amount | None = None
    fastest_speedup_interval: Interval | None = None

    @model_validator(mode="after")
    def _speedup_agrees(self, info: ValidationInfo) -> Timing:
        if not info.context or self.speedup is None or self.speedup_interval is None:
            return self
        # Medians of few passes are skewed, so an interval need not contain the speed-up.
        low, high = self.speedup_interval
        if _outside(self.speedup, self.speedup_interval) > max(high - low, low / 4):
            raise ValueError(_far_outside("speed-up", self.speedup, self.speedup_interval))
        return self


class Throughput(ResultModel):
    """All timings of one interleaved run."""

    provider: str
    device: str
    precision: str
    threads: Count
    lengths: str  # how lengths were chosen, in words
    rows: list[Timing]


class Source(ResultModel):
    """A data file: where, how many rows, and a fingerprint of what was used."""

    files: list[str]
    rows: Count
    sha256: str


class LayerCost(ResultModel):
    """What reducing one sublayer of a kind to `units` units saves of a batch's time.

    Measured on the model with all sublayers of the kind at `units` and all others dense; where the
    attentions of a stack keep equally many heads, with all of these at `units`.
    """

    kind: str
    units: Count
    layers: Count  # that were reduced at once
    speedup: Amount  # of that model over dense
    speedup_interval: Interval
    saved_share: Number  # of the dense time, per sublayer; never falls as units go


class CostTable(ResultModel):
    """Measured cost of units at one batch size on one machine."""

    batch_size: Count
    dense_seconds: Amount  # of a batch
    lengths: str  # how lengths were chosen, in words
    rows: list[LayerCost]


class SpeedTry(ResultModel):
    """A choice of units that was timed to see whether it reaches the wanted speed-up."""

    aim: Number  # the speed-up that was asked of the cost table
    predicted: Number  # by the cost table for the units chosen
    kept: str  # units, in words
    speedup: Amount  # measured
    speedup_interval: Interval
    met: bool


class LayersTry(ResultModel):
    """A choice of units for the wanted speed-up after some whole layers were dropped."""

    layers: list[str]  # in the order in which they went, `decoder.2`
    kept: str = ""  # units; none where no choice is fast enough
    speedup: Amount | None = None  # over dense, measured
    # From the dense model on held-out rows, after the repair, nats per loss term; None where the
    # wanted speed-up was not reached.
    divergence: Amount | None = None


class SpeedSearch(ResultModel):
    """How units were chosen for a speed-up: what units cost, and the choices that were timed."""

    wanted: Number
    costs: CostTable
    tries: list[SpeedTry]
    layers: list[LayersTry] = []  # where the number of dropped layers was searched


class QualityProbe(ResultModel):
    """A smaller model that was built, answered test rows, and was judged by them."""

    kept: Count  # heads
    neurons: Count  # kept, as heads
    macs: Share  # share of the dense model's multiply-adds
    position: Count  # on the path of cuts, the dense model being 0
    comparison: Comparison
    bound: Number  # lower confidence bound of the difference
    confidence: Share  # of the bound, one-sided
    rows_needed: Count | None = None  # for a bound within the limit; None where none are enough
    accepted: bool


class QualitySearch(ResultModel):
    """How far a model could be cut before the main metric fell by more than `drop`."""

    drop: Number
    metric: str
    proof: Literal["bound", "measured"]  # what a probe must show to be accepted
    rows: Source  # that probes were judged on
    probes: list[QualityProbe]  # in the order they were made
    held_out: Count  # rows that looks, and all final figures, were measured on
    looks: list[QualityProbe]  # in the order they were made
    delivered: Count  # position of the look that is the delivered model
    proven: bool  # whether its bound on the held-out rows is within the limit


Verdict = Literal["passed", "failed", "inconclusive"]
Inconclusive = Literal["fail", "pass", "measured"]  # what an inconclusive rule counts as


class Outcome(ResultModel):
    """One gate rule and what became of it.

    `met` counts an inconclusive rule as it was asked to (`--inconclusive`).
    """

    rule: str
    variant: str
    met: bool
    message: str
    verdict: Verdict
    measured: Number | None = None
    interval: Interval | None = None  # confidence bounds; None of exact numbers
    limit: Number | None = None  # on the scale of `measured`
    enough: Count | None = None  # rows, or timed batches, that would about settle it
