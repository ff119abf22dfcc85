"""The typed results of a run's stages, which reports, gates and manifests read.

Each can be written to JSON and read back. Units are in the field names; ratios are pruned over
dense where larger is better for pruned. Results never change: a stage that adds something returns
a copy.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

# Name of the check of fp16 graphs that is a share of what float16 can hold, not of a logit.
HALF_RANGE = "values within float16's range"


class Record(BaseModel):
    """Base of all results; unknown keys are errors, so that a mistyped key is not lost."""

    # JSON has no NaN; as the string "NaN" it can be written and read back.
    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), ser_json_inf_nan="strings"
    )


class Quality(Record):
    """Metric values of one model on the test rows, on the metric's own scale (BLEU 0-100)."""

    metrics: dict[str, float]
    signatures: dict[str, str]
    rows: int


class Comparison(Record):
    """Pruned minus dense for one metric, paired over the test rows."""

    metric: str
    dense: float
    pruned: float
    difference: float
    interval: tuple[float, float]  # 95 % percentile interval of the difference
    p_value: float  # two-sided
    resamples: int


class Check(Record):
    """One verification: the largest deviation seen and the tolerance it had to meet."""

    name: str
    largest_difference: float
    tolerance: float
    detail: str = ""


class Scoring(Record):
    """How heads were ranked."""

    method: str
    signature: str
    cost: dict[str, float]
    values: dict[str, list[float]]


class Variant(Record):
    """One model: the dense one (`name="dense"`) or one that lost units.

    Reports of versions that removed heads alone have no neurons.
    """

    name: str
    directory: str
    budget: str
    kept: dict[str, list[int]]  # attention sublayer -> kept heads
    heads: dict[str, int]  # attention sublayer -> heads before removal
    neurons: dict[str, int] = {}  # feed-forward part -> neurons before removal
    kept_neurons: dict[str, int] = {}  # feed-forward part -> how many are kept
    # What its units leave of the dense model's multiply-adds, at the rows' lengths.
    macs_share: float | None = None
    parameters: int
    checkpoint_bytes: int
    onnx_bytes: int
    output_tokens: int | None = None  # how many a translator's decoder scores
    precision: str
    base: str = ""  # name of the float32 model that this is another precision of
    default: bool = True  # whether the runtime takes this precision where none is named
    selection: str = ""  # how the heads were found, in words, where scores alone do not tell
    scoring: Scoring | None = None  # where it is not the report's
    recovery: str = ""  # how the kept weights were repaired, in words; empty if they were not
    quality: Quality | None = None
    comparisons: list[Comparison] = []
    base_comparisons: list[Comparison] = []  # with `base` (as `dense`), where that is not dense
    checks: list[Check] = []

    @property
    def counts(self) -> dict[str, int]:
        """Units left in each sublayer, for the theoretical limit."""
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
            if len(set(kept)) != len(kept) or not set(kept) <= set(range(self.heads[name])):
                raise ValueError(
                    f"variant {self.name!r}: kept heads {kept} of {name} are not distinct numbers "
                    f"below {self.heads[name]}"
                )
        if self.kept_neurons.keys() != self.neurons.keys() or any(
            not 0 <= kept <= self.neurons[name] for name, kept in self.kept_neurons.items()
        ):
            raise ValueError(f"variant {self.name!r}: kept_neurons and neurons do not agree")
        return self


class Timing(Record):
    """One model at one batch size."""

    variant: str
    batch_size: int
    source_tokens: float  # mean real tokens per row
    padded_source_tokens: float  # mean tokens per row with padding
    target_tokens: float  # mean generated tokens per row; 0 for classifiers
    runs: int
    sentences_per_second: float
    tokens_per_second: float  # generated tokens, or real source tokens for classifiers
    latency_ms: dict[Literal["p50", "p90", "p99"], float]  # of one batch
    peak_memory_mib: float | None = None
    speedup: float | None = None  # sentences per second over dense, from the same run
    speedup_interval: tuple[float, float] | None = None
    limit: float | None = None  # what the speed-up cannot exceed at this shape
    limit_macs: float | None = None
    limit_bytes: float | None = None
    provider: str | None = None  # what ran it; None where only the whole measurement tells
    precision: str | None = None


class Throughput(Record):
    """All timings of one interleaved run."""

    provider: str
    device: str
    precision: str
    threads: int
    lengths: str  # how lengths were chosen, in words
    rows: list[Timing]


class Source(Record):
    """A data file: where, how many rows, and a fingerprint of what was used."""

    files: list[str]
    rows: int
    sha256: str


class LayerCost(Record):
    """What reducing one sublayer of a kind to `units` units saves of a batch's time.

    Measured on the model with all sublayers of the kind at `units` and all others dense.
    """

    kind: str
    units: int = Field(validation_alias=AliasChoices("units", "heads"))
    layers: int  # of that kind, all reduced at once
    speedup: float  # of that model over dense
    speedup_interval: tuple[float, float]
    saved_share: float  # of the dense time, per sublayer; never falls as units go


class CostTable(Record):
    """Measured cost of units at one batch size on one machine."""

    batch_size: int
    dense_seconds: float  # of a batch
    lengths: str  # how lengths were chosen, in words
    rows: list[LayerCost]


class SpeedTry(Record):
    """A choice of units that was timed to see whether it reaches the wanted speed-up."""

    aim: float  # the speed-up that was asked of the cost table
    predicted: float  # by the cost table for the units chosen
    kept: Annotated[str, BeforeValidator(str)]  # units, in words; once a number of heads
    speedup: float  # measured
    speedup_interval: tuple[float, float]
    met: bool


class SpeedSearch(Record):
    """How units were chosen for a speed-up: what units cost, and the choices that were timed."""

    wanted: float
    costs: CostTable
    tries: list[SpeedTry]


class QualityProbe(Record):
    """A smaller model that was built, answered test rows, and was judged by them."""

    kept: int  # heads
    neurons: int | None = None  # kept; None where all are
    macs: float | None = None  # share of the dense model's multiply-adds
    position: int | None = None  # on the path of cuts, the dense model being 0
    comparison: Comparison
    bound: float | None = None  # lower confidence bound of the difference
    confidence: float | None = None  # of the bound, one-sided
    rows_needed: int | None = None  # for a bound within the limit; None where none are enough
    accepted: bool


class QualitySearch(Record):
    """How far a model could be cut before the main metric fell by more than `drop`.

    Reports of schema 1 have no `proof`: a probe was accepted there unless the whole 95 %
    interval of its difference lay below -`drop`, on the same rows as the final figures.
    """

    drop: float
    metric: str
    probes: list[QualityProbe]  # in the order they were made
    proof: Literal["bound", "measured"] | None = None  # what a probe must show to be accepted
    rows: Source | None = None  # that probes were judged on
    held_out: int | None = None  # rows that looks, and all final figures, were measured on
    looks: list[QualityProbe] = []  # in the order they were made
    delivered: int | None = None  # position of the look that is the delivered model
    proven: bool | None = None  # whether its bound on the held-out rows is within the limit


class Outcome(Record):
    """One gate rule and whether it is met."""

    rule: str
    variant: str
    met: bool
    message: str
