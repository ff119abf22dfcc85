"""Hard concrete gates, pruned to a wanted number of units or by a penalty on open gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compressor.learned_masks.method import LearnedMask, LearningJob

if TYPE_CHECKING:
    from compressor.learned_masks.base import GateLayout, Gates


class HardConcrete(LearnedMask):
    """Gates with an expected-L0 penalty; a Lagrangian leads them to the wanted count."""

    takes_penalty: ClassVar[bool] = True

    name: ClassVar[str] = "hard-concrete"

    def make_gates(self, layout: GateLayout, job: LearningJob) -> Gates:
        from compressor.learned_masks.hard_concrete_gates import HardConcreteGates

        return HardConcreteGates(layout, job.device, job.penalty, self.gate_learning_rate)
