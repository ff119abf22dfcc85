"""Fisher information: the mean squared derivative of the loss by a head's gate.

Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers", mask search: with
gates xi_h = 1 on the heads' outputs, I_h = E[(dL/d xi_h)^2] over examples, the diagonal of the
empirical Fisher information. dL/d xi_h is the sum over an example's tokens of a_h . dL/da_h, so
one forward and one backward pass see the gates of all heads.
"""

from __future__ import annotations

from torch import Tensor

from compressor.importance import RawScores, Scoring
from compressor.importance.gradients import visit_gradients, zeros
from compressor.model.sublayers import Sublayer


def score(scoring: Scoring) -> RawScores:
    """Mean over examples of (dL/d xi_h)^2; L is the negative log-likelihood of a whole example."""
    sums = zeros(scoring)

    def add(layer: Sublayer, output: Tensor, gradient: Tensor, real: Tensor) -> None:
        products = (output * gradient).sum(-1) * real[..., None]  # [batch, tokens, heads]
        sums[layer.name] += products.sum(1).square().sum(0).double()

    passes = visit_gradients(scoring, add)
    examples = sum(len(batch.rows) for batch in scoring.batches)
    values = {name: (total / examples).tolist() for name, total in sums.items()}
    return RawScores(values, "per:example", forward_passes=passes, backward_passes=passes)
