"""Taylor sensitivity: how much the loss would change, to first order, without a unit.

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", equation 2. Their formula
takes the absolute value of a_h . dL/da_h per example, their released code per token, which is the
default here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compressor import parallel
from compressor.importance import RawScores, ScoringJob, TokenwiseMethod
from compressor.model.sublayers import Sublayer

if TYPE_CHECKING:
    from torch import Tensor


class Taylor(TokenwiseMethod):
    """First-order change of the loss without the unit."""

    name: ClassVar[str] = "taylor"

    def score(self, scoring: ScoringJob) -> RawScores:
        """Mean |a_h . dL/da_h| over real tokens, or over examples of its sum over tokens."""
        from compressor.importance.gradients import visit_gradients, zeros

        sums = zeros(scoring)
        counts = {name: total.new_zeros(()) for name, total in sums.items()}

        def add(layer: Sublayer, output: Tensor, gradient: Tensor, real: Tensor) -> None:
            products = (output * gradient).sum(-1) * real[..., None]  # [batch, tokens, units]
            if self.per == "example":
                sums[layer.name] += products.sum(1).abs().sum(0).double()
                counts[layer.name] += len(products)
            else:
                sums[layer.name] += products.abs().sum((0, 1)).double()
                counts[layer.name] += real.sum()

        passes = visit_gradients(scoring, add)
        parallel.add_up(*sums.values(), *counts.values())
        values = {name: (total / counts[name]).tolist() for name, total in sums.items()}
        return RawScores(values, f"per:{self.per}", forward_passes=passes, backward_passes=passes)
