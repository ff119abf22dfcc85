"""Learned masks: a gate per unit, trained until it is open or closed.

A method is a class here, with its options, its gates in a file of their own, and a line in
`LEARNED`; `learn` runs it. Nothing here imports torch: the options are part of the help.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator
from typing_extensions import override

from compressor.budgets.units import MULTIPLES, Multiples
from compressor.errors import UsageError
from compressor.importance import TrainedWeights, UnitMethod
from compressor.model.sublayers import Mask, Scores
from compressor.options.bounds import Count, Positive
from compressor.options.declare import option
from compressor.options.table import Table, import_object
from compressor.training import LEAST_PATIENCE, PATIENCE, TrainingJob, rate_option

if TYPE_CHECKING:
    from torch import nn

    from compressor.learned_masks.base import GateLayout, Gates


class LearnedMask(UnitMethod):
    """Base of the methods that train a gate for every unit; open gates become the mask.

    A subclass has its options as fields, and `make_gates` makes its gates. The loop, the data, the
    held-out rows and the weights trained along are the same for all.
    """

    learns: ClassVar[bool] = True
    needs_answers: ClassVar[bool] = True
    most_units: ClassVar[int | None] = None  # largest number of gates; None for any number

    train_weights: TrainedWeights = option(
        "none", help="Learned masks: train along none, encoder or all weights."
    )
    epochs: Count = option(20, name="gate_epochs", help="Learned masks: epochs.")
    learning_rate: Positive | None = rate_option(only_with="train_weights")
    patience: Count | None = PATIENCE
    gate_learning_rate: Positive | None = option(
        None, help="Learned masks: of the gates; default: by method."
    )

    @property
    def waits(self) -> int:
        """The epochs without gain after which training stops."""
        return self.patience or LEAST_PATIENCE

    @model_validator(mode="after")
    def _leaves_an_epoch_for_the_weights(self) -> LearnedMask:
        if self.train_weights != "none" and self.epochs < 2:
            raise UsageError(
                f"--gate-epochs {self.epochs} is too short with trained weights: the last epoch "
                "trains them on the final mask; give at least 2",
                id="too-few-epochs",
            )
        return self

    @abstractmethod
    def make_gates(self, layout: GateLayout, job: LearningJob) -> Gates:
        """Return untrained gates for the units of a layout.

        Args:
            layout: the position of each unit's gate, and how many units to keep.
            job: its device, and its penalty for methods that take one.
        """

    @property
    @override
    def trained_weights(self) -> TrainedWeights:
        return self.train_weights

    @override
    def check_size(self, keep: Mapping[str, int], full: Mask) -> None:
        gates = sum(full.total(pool) for pool in keep)  # only units of these pools have gates
        if self.most_units is not None and gates > self.most_units:
            raise UsageError(
                f"--method {self.name} computes a softmax over all gates for each kept unit and "
                f"supports at most {self.most_units:,} units, not {gates:,}; use --method "
                "hard-concrete, or keep all neurons",
                id="method-for-few-units",
            )


class HardConcrete(LearnedMask):
    """Gates with an expected-L0 penalty; a Lagrangian leads them to the wanted count.

    Louizos et al. 2018; for heads Voita et al. 2019, section 5; for counts CoFi, Xia et al. 2022.
    """

    name: ClassVar[str] = "hard-concrete"
    takes_penalty: ClassVar[bool] = True

    @override
    def make_gates(self, layout: GateLayout, job: LearningJob) -> Gates:
        from compressor.learned_masks.hard_concrete_gates import HardConcreteGates

        return HardConcreteGates(layout, job.device, job.penalty, self.gate_learning_rate)


class Subset(LearnedMask):
    """Differentiable subset pruning, for heads.

    Li, Cotterell & Sachan 2021, "Differentiable Subset Pruning of Transformer Heads".
    """

    name: ClassVar[str] = "subset"
    most_units: ClassVar[int | None] = 2000  # gates then take 0.8 seconds per step on one core

    estimator: Literal["gumbel", "straight-through"] = option(
        "gumbel", help="subset: gumbel or straight-through."
    )

    @override
    def make_gates(self, layout: GateLayout, job: LearningJob) -> Gates:
        from compressor.learned_masks.subset_gates import SubsetGates

        return SubsetGates(layout, job.device, self.estimator, self.gate_learning_rate)


LEARNED: Table[type[LearnedMask]] = Table(
    "learned mask", {"hard-concrete": HardConcrete, "subset": Subset}, id="method-unknown"
)


@dataclass(frozen=True, kw_only=True)
class LearningJob(TrainingJob):
    """The model and the data that a mask is learned from."""

    model: nn.Module  # dense; not changed (trained weights are those of a copy)
    # Units to keep per pool: `heads`, `neurons` or a kind of sublayer; other sublayers keep all
    # units and get no gates. None with a penalty, which is for heads.
    keep: Mapping[str, int] | None
    floors: Mapping[str, int]  # least number of units in each sublayer of a kind
    multiples: Multiples = field(default_factory=lambda: MULTIPLES)
    penalty: float | None = None  # instead of `keep`, for methods that take one: nats per open head
    batch_size: int = 32


@dataclass(frozen=True)
class Learned:
    """A mask that was learned, and the weights that belong to it."""

    mask: Mask
    # Learned parameter of each unit's gate, higher is kept; units without a gate have the largest.
    scores: Scores
    model: nn.Module  # with trained weights; `LearningJob.model` itself if none were trained
    text: str  # a description of the training, for the report


def learn(method: LearnedMask, job: LearningJob) -> Learned:
    """Learn a mask.

    Args:
        method: with its options.
        job: the dense model, the data, and how many units to keep.

    Returns:
        The mask, which keeps as many units as were asked for (of units that are kept in groups, the
        fewest that are no less; with a penalty, as many as it leads to), and trained weights.

    Raises:
        InputError: too few rows to hold some out, or a loss that is not finite.
    """
    learned: Learned = import_object("compressor.learned_masks.learning:run")(method, job)
    return learned
