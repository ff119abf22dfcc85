"""Differentiable subset pruning: exactly the wanted number of gates is open in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from compressor.learned_masks.method import LearnedMask, LearningJob
from compressor.options.declare import option

if TYPE_CHECKING:
    from compressor.learned_masks.base import GateLayout, Gates


class Subset(LearnedMask):
    """Differentiable subset pruning, for heads."""

    # With 2,000 units, half of them kept, gates and their gradient take 0.8 seconds per step on
    # one core, besides the model.
    most_units: ClassVar[int | None] = 2000

    name: ClassVar[str] = "subset"
    estimator: Literal["gumbel", "straight-through"] = option(
        "gumbel", help="subset: gumbel or straight-through."
    )

    def make_gates(self, layout: GateLayout, job: LearningJob) -> Gates:
        from compressor.learned_masks.subset_gates import SubsetGates

        return SubsetGates(layout, job.device, self.estimator, self.gate_learning_rate)
