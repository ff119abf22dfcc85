"""The values between the steps of a run: each says what has been done so far.

None is changed and handed on again, and none holds options of later steps (`Plan` has those).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from compressor.budgets import Budget, Limits
from compressor.budgets.units import UnitCosts
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask, Scores, Sublayer, units_of
from compressor.options.requests import Recipe
from compressor.recovery import RecoveryMethod
from compressor.results import (
    Check,
    OutputPath,
    QualitySearch,
    SpeedSearch,
    Throughput,
    Variant,
)
from compressor.tasks import TASKS, Batch, Example, Rows, Task
from compressor.tasks.rows import count_shared
from compressor.tasks.texts import TextFile
from compressor.training.data import Text

if TYPE_CHECKING:
    from torch import Tensor

DENSE = "dense"  # name of the model to compare with


@dataclass(frozen=True)
class ArtifactPlan:
    """One of the run's budgets, and where its artifact goes."""

    name: str
    budget: Budget
    directory: Path = field(compare=False)


@dataclass(frozen=True)
class Plan:
    """What a run is to do: its options, resolved for the model and the device."""

    recipe: Recipe
    output: Path
    device: str
    artifacts: Sequence[ArtifactPlan]
    engines: Sequence[str]  # to export for, and to compare with
    precisions: Sequence[str]  # to export, float32 first


@dataclass(frozen=True)
class DataRows:
    """The rows of a run."""

    calibration: Rows | None
    test: Rows | None  # that quality and speed are measured on
    search: Rows | None = None  # that a search for a budget looks at; no test rows

    @property
    def shared(self) -> int:
        """Number of test rows whose texts are calibration rows too."""
        return count_shared(self.test, self.calibration) if self.calibration and self.test else 0

    @property
    def fitted(self) -> Rows:
        """The rows to score and check builds on: calibration rows, else other rows of the run."""
        rows = self.calibration or self.search or self.test
        assert rows is not None
        return rows

    @property
    def timed(self) -> Rows:
        """The rows to time on: test rows, else those of `fitted`."""
        return self.test or self.fitted


@dataclass(frozen=True)
class ModelAndRows:
    """A checkpoint, and the rows that its units are scored and recovered on."""

    checkpoint: Checkpoint
    examples: Sequence[Example] = ()  # the rows in the checkpoint's tokens
    rows: Rows | None = None
    batches: Sequence[Batch] = ()  # ragged, on which every build is compared with its reference
    calibrated: bool = True  # whether they are calibration rows

    @property
    def task(self) -> Task:
        """The task of the checkpoint."""
        return TASKS[self.checkpoint.task]

    @property
    def texts(self) -> tuple[Sequence[str], Sequence[str] | None]:
        """Texts to compare tokenizers on, and a second text of each for tasks that read pairs."""
        return ((), None) if self.rows is None else (self.rows.sources, self.rows.pairs)

    @property
    def inputs(self) -> list[Mapping[str, Tensor]]:
        """The arguments of a model's forward, of every batch to check."""
        return [batch.inputs() for batch in self.batches]


@dataclass(frozen=True)
class Opened:
    """What a run starts from, opened and checked."""

    dense: ModelAndRows  # the model as given, to compare with
    source: ModelAndRows  # what units are removed from; maybe with fewer tokens
    data: DataRows
    limits: Limits  # what may go
    costs: UnitCosts  # multiply-adds of what may go
    text: Text | None = None  # to distill from
    source_text: TextFile | None = None  # whose tokens are kept
    target_text: TextFile | None = None  # whose tokens decoders of pruned models score

    @property
    def sublayers(self) -> list[Sublayer]:
        """Those whose units may go."""
        layers = self.source.checkpoint.layers
        return [x for x in layers if units_of(x.kind) in self.limits.units]


@dataclass(frozen=True)
class RecoveryPlan:
    """How a run recovers models."""

    methods: Sequence[RecoveryMethod] = ()  # in their order
    files: Sequence[Path] = ()  # that steps made of the text, and training reads
    text: Text | None = field(default=None, compare=False)  # to distill from, once it is ready

    @property
    def names(self) -> str:
        """The methods, as typed."""
        return "+".join(method.name for method in self.methods)


@dataclass(frozen=True)
class ChosenUnits:
    """The units that an artifact keeps, and why."""

    name: str  # of the artifact
    budget: str  # in words
    mask: Mask
    scores: Scores
    text: str = ""  # how they were chosen, where scores alone do not say
    search: SpeedSearch | QualitySearch | None = None  # what was measured on the way
    weights: OutputPath | None = None  # that belong to the mask; None: the dense model's


@dataclass(frozen=True)
class Pruned:
    """The model without its other units, which answers as with them masked."""

    chosen: ChosenUnits
    check: Check

    @property
    def mask(self) -> Mask:
        """The units that are kept."""
        return self.chosen.mask


@dataclass(frozen=True)
class RecoveredModel:
    """The pruned model with the weights that the recovery changed."""

    pruned: Pruned
    text: str = ""  # what the recovery did, in words; empty if it did nothing
    weights: OutputPath | None = None  # those that it changed

    @property
    def chosen(self) -> ChosenUnits:
        """The units that are kept, and why."""
        return self.pruned.chosen

    @property
    def mask(self) -> Mask:
        """The units that are kept."""
        return self.chosen.mask


@dataclass(frozen=True)
class Saved:
    """The recovered model as a checkpoint, which loads back as it was."""

    recovered: RecoveredModel
    directory: OutputPath
    check: Check


@dataclass(frozen=True)
class Exported:
    """A model as an engine runs it, which answers as PyTorch does, within its tolerance."""

    directory: OutputPath  # of the artifact, or of the dense model's graphs
    model: Variant  # its facts, without the directory

    def located(self) -> Variant:
        """The facts with the directory, for the report."""
        return self.model.model_copy(update={"directory": self.directory.as_posix()})


@dataclass(frozen=True)
class Measured:
    """All models of a run, with their quality and their speed, as reports have them."""

    dense: Variant
    builds: Sequence[Variant]  # the others, of which those to serve are marked
    throughput: Throughput | None
    search: SpeedSearch | QualitySearch | None  # of the last budget
