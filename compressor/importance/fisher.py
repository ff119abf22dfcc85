"""Fisher information: the mean squared derivative of the loss by a unit's gate.

Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers", mask search: with
gates xi_h = 1 on the units' outputs, I_h = E[(dL/d xi_h)^2] over examples, the diagonal of the
empirical Fisher information. dL/d xi_h is the sum over an example's tokens of a_h . dL/da_h, so
one forward and one backward pass see the gates of all units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from compressor import parallel
from compressor.importance import NormalizedMethod, RawScores, ScoringJob
from compressor.model.sublayers import Sublayer

if TYPE_CHECKING:
    from torch import Tensor


class Fisher(NormalizedMethod):
    """Mean squared gradient of the loss by the unit's gate."""

    name: ClassVar[str] = "fisher"

    def score(self, scoring: ScoringJob) -> RawScores:
        """Mean over examples of (dL/d xi_h)^2, L being a whole example's log-likelihood."""
        from compressor.importance.gradients import visit_gradients, zeros

        sums = zeros(scoring)

        def add(layer: Sublayer, output: Tensor, gradient: Tensor, real: Tensor) -> None:
            products = (output * gradient).sum(-1) * real[..., None]  # [batch, tokens, units]
            sums[layer.name] += products.sum(1).square().sum(0).double()

        passes = visit_gradients(scoring, add)
        parallel.add_up(*sums.values())
        examples = parallel.total(sum(len(batch.rows) for batch in scoring.batches))
        values = {name: (total / examples).tolist() for name, total in sums.items()}
        return RawScores(values, "per:example", forward_passes=passes, backward_passes=passes)
