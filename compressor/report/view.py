"""The report as it is shown: one typed view, made once of what is stored, in the page's order.

`schema.Report` is what is stored, `build_view` in `build_view.py` works out what follows from it,
and Markdown, HTML, model cards, the terminal and the files for CI format it and compute nothing.
Numbers are as stored, in the units of their names; `tables.py` has the columns that show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compressor.report.facts import Judgment, Kept, MetricStyle
from compressor.report.gains import FastestGain, Gain
from compressor.report.schema import Change, Report
from compressor.steps.results import (
    Check,
    CostTable,
    Interval,
    LayersTry,
    Outcome,
    QualityCandidate,
    SpeedTry,
    Timing,
    Verdict,
)


@dataclass(frozen=True)
class Difference:
    """A build's score in one metric beside that of another build, paired over the test rows."""

    style: MetricStyle  # of the metric
    against: str  # the other build
    score: float
    difference: float  # from the other build's score
    interval: Interval  # 95 %, of the difference: the one that gate rules are held against
    p_value: float
    judgment: Judgment
    rows: int  # that both answered; 0 if unknown
    has_few_rows: bool  # too few to see a loss that matters
    is_at_floor: bool  # whether the other build's score is no better than chance

    @property
    def text(self) -> str:
        """The difference with its interval: `-0.31 [-0.62, +0.01]`."""
        return f"{self.style.difference(self.difference)} {self.style.interval(self.interval)}"


@dataclass(frozen=True)
class SpeedRow:
    """One build at one batch size, in a measurement in which builds took turns."""

    timing: Timing
    gain: Gain | None  # over the dense model in float32; None of that itself
    over_fastest: FastestGain | None  # None where only one dense build was timed


@dataclass(frozen=True)
class BuildSummary:
    """One build in the conclusion and in the table below it."""

    name: str
    precision: str
    score: float | None  # in the main metric
    difference: Difference | None  # from dense in the main metric
    speeds: tuple[SpeedRow, ...]  # by ascending batch size
    onnx_bytes: int

    def at_batch(self, size: int) -> SpeedRow | None:
        """The build's timing at a batch size."""
        return next((row for row in self.speeds if row.timing.batch_size == size), None)


@dataclass(frozen=True)
class Headline:
    """The most important pruned build beside the dense model, and that in a low precision."""

    metric: MetricStyle | None  # the main one
    batch_sizes: tuple[int, ...]  # the smallest and the largest that were timed
    dense: BuildSummary
    build: BuildSummary
    dense_alone: BuildSummary | None  # what its low precision gives without pruning
    over_fastest: tuple[FastestGain, ...]  # of the model's best build, by batch size


@dataclass(frozen=True)
class NextStep:
    """Advice, and the command that follows it."""

    advice: str
    command: str


@dataclass(frozen=True)
class SampleRow:
    """A test row and what each of the shown models answers."""

    texts: tuple[str, ...]
    reference: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class SampleAnswers:
    """Test rows at even distances, with the answers of dense and of the headline's build."""

    models: tuple[str, ...]
    rows: tuple[SampleRow, ...]


@dataclass(frozen=True)
class QualityRow:
    """A build's score in one metric, and how it differs from another build's."""

    build: str
    style: MetricStyle
    score: float | None
    difference: Difference | None  # None of the dense model, and where nothing was compared
    is_reference: bool


@dataclass(frozen=True)
class LengthsRow:
    """What a translator that became too small fails at first, of one build."""

    build: str
    score: float | None  # in the main metric, on all rows
    long_score: float | None  # on those with long sources; None where they are too few
    other_lengths: float | None  # share of its translations; None of the dense model


@dataclass(frozen=True)
class LengthsSection:
    """Long sources, and the lengths of translations."""

    style: MetricStyle  # of the main metric
    words: int  # that each long source has more than
    long_rows: int
    rows: tuple[LengthsRow, ...]


@dataclass(frozen=True)
class QualitySection:
    """All scores and differences."""

    rows: tuple[QualityRow, ...]
    notes: tuple[str, ...]
    means_over: str  # what scores are means over, if not rows: `1,200 queries`
    lengths: LengthsSection | None  # of translations


@dataclass(frozen=True)
class SpeedSection:
    """All timings, the dense model first at each batch size."""

    rows: tuple[SpeedRow, ...]
    counted_tokens: str  # which tokens are counted, `generated`
    several_engines: bool
    notes: tuple[str, ...]  # about gains over dense builds of any engine


@dataclass(frozen=True)
class SizeRow:
    """How large a build is."""

    build: str
    precision: str
    heads: Kept
    neurons: Kept
    tokens: Kept  # the mean share that layers hand on
    macs_share: float  # of the dense model's multiply-adds
    parameters: int
    checkpoint_bytes: int
    onnx_bytes: int
    in_default_engine: bool


@dataclass(frozen=True)
class SearchSection:
    """How the units to remove were searched; empty if the budget was their number."""

    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    limitation: str = ""  # for the model card
    metric: MetricStyle | None = None  # that was searched for
    wanted: float = 0.0  # speed-up, or drop of the metric at most
    candidates: tuple[CandidateRow, ...] = ()  # of a search for a drop
    tries: tuple[SpeedTry, ...] = ()  # of a search for a speed-up
    layers: tuple[LayersTry, ...] = ()
    training: str = ""  # how the tried layers were recovered, in words
    costs: CostTable | None = None


@dataclass(frozen=True)
class CandidateRow:
    """A smaller model that a search for a drop built and judged."""

    candidate: QualityCandidate
    tokens: Kept | None  # the mean share that layers hand on; None where tokens are no units
    interval: Interval  # 95 %, of its difference
    held_out: bool  # whether it was judged on the rows that were held out
    result: str


@dataclass(frozen=True)
class UnitsRow:
    """The units of one sublayer, or of all of a kind, that each pruned model keeps."""

    name: str
    # One for each model; None of tokens in a layer that is skipped, or the last one.
    kept: tuple[Kept | None, ...]


@dataclass(frozen=True)
class UnitsSection:
    """The units left in every sublayer."""

    title: str  # `Heads and neurons`
    shows_tokens: bool  # whether a model hands on fewer than all
    models: tuple[str, ...]
    rows: tuple[UnitsRow, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CheckRow:
    """A verification of one build."""

    build: str
    check: Check


@dataclass(frozen=True)
class Fact:
    """A name and a value, of provenance and environment."""

    name: str
    value: str


@dataclass(frozen=True)
class Look:
    """How a build is drawn in every plot: its model by color and marker, the build by filling."""

    model: int | None  # number of the pruned model; None of the dense one
    build: int  # number of the build of that model, 0 in float32


@dataclass(frozen=True)
class QualityPoint:
    """A build at one batch size: quality against speed, each with its 95 % interval."""

    build: str
    speedup: float
    speedup_interval: Interval | None
    score: float
    score_interval: Interval


@dataclass(frozen=True)
class QualityPlot:
    """The main metric against the speed-up over dense, a panel for each batch size."""

    style: MetricStyle
    dense: str
    dense_score: float
    panels: Mapping[int, tuple[QualityPoint, ...]]  # by batch size
    fastest_dense: Mapping[int, float]  # speed-up of the fastest dense build, by batch size


@dataclass(frozen=True)
class RateLine:
    """A build's sentences per second by batch size."""

    build: str
    batch_sizes: tuple[int, ...]
    rates: tuple[float, ...]


@dataclass(frozen=True)
class UnitsPanel:
    """The units that a model keeps in the sublayers of one kind, in their order."""

    title: str
    layers: Mapping[str, Kept | None]  # number of the layer -> its units, as in `UnitsRow`


@dataclass(frozen=True)
class Plots:
    """The series of all plots; each is empty where the report has no data for it."""

    looks: Mapping[str, Look]  # by build
    quality: QualityPlot | None
    throughput: tuple[RateLine, ...]
    units: Mapping[str, tuple[UnitsPanel, ...]]  # by pruned model


@dataclass(frozen=True)
class ReportView:
    """A report as it is shown, section by section in the order of a page."""

    report: Report
    title: str
    conclusion: str  # one sentence
    gate_sentence: str  # how many checks are met; empty without rules
    verdict: Verdict | None  # the worst of all rules
    warnings: tuple[str, ...]  # what the numbers do not show, and which of them to doubt
    floors: tuple[str, ...]  # of the warnings those about metrics at their floor
    few_rows: tuple[str, ...]  # and those about few rows
    headline: Headline | None
    delivered: tuple[str, ...]  # the builds that artifacts run where no precision is named
    measured: str  # where and when
    next_step: NextStep | None
    samples: SampleAnswers | None
    gate: tuple[Outcome, ...]
    changes: tuple[Change, ...]  # since an earlier run
    quality: QualitySection
    speed: SpeedSection
    sizes: tuple[SizeRow, ...]
    search: SearchSection
    units: UnitsSection
    checks: tuple[CheckRow, ...]
    provenance: tuple[Fact, ...]
    signatures: tuple[Fact, ...]
    environment: tuple[Fact, ...]
    plots: Plots

    @property
    def paragraph(self) -> str:
        """Conclusion, warnings and the gate in one paragraph."""
        return " ".join(filter(None, (self.conclusion, *self.warnings, self.gate_sentence)))
