"""The values between the steps of a run: each says what has been done so far to a model.

None is changed and handed on again, and none holds options of later steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from compressor.model.sublayers import Mask, Scores
from compressor.steps.results import (
    CandidateFacts,
    Check,
    OutputPath,
    QualitySearch,
    SpeedSearch,
    Variant,
)

DENSE = "dense"  # name of the model to compare with


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
class LearnedCandidates:
    """A table of the output tokens that decoders score by source tokens."""

    table: OutputPath  # a NumPy file
    facts: CandidateFacts


@dataclass(frozen=True)
class DecoderTokens:
    """The output tokens that decoders of pruned models score."""

    tokens: list[int] | None  # None: all
    candidates: LearnedCandidates | None = None  # of batches; None: they score all of `tokens`


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
