"""Taylor sensitivity: how much the loss would change, to first order, if a head fell silent.

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", equation 2. Their formula
takes the absolute value of a_h . dL/da_h per example, their released code per token; both are
here, the released code's is the default.
"""

from __future__ import annotations

import torch
from torch import Tensor

from compressor.importance import Per, RawScores, Scoring
from compressor.importance.gradients import visit_gradients, zeros
from compressor.model.sublayers import Sublayer


def score(scoring: Scoring, per: Per = "token") -> RawScores:
    """Mean |a_h . dL/da_h| over real tokens, or over examples of its sum over tokens.

    Args:
        per: where the absolute value is taken, of each token or of an example's sum.
    """
    sums = zeros(scoring)
    counts = {name: torch.zeros_like(total[0]) for name, total in sums.items()}

    def add(layer: Sublayer, output: Tensor, gradient: Tensor, real: Tensor) -> None:
        products = (output * gradient).sum(-1) * real[..., None]  # [batch, tokens, heads]
        if per == "example":
            sums[layer.name] += products.sum(1).abs().sum(0).double()
            counts[layer.name] += len(products)
        else:
            sums[layer.name] += products.abs().sum((0, 1)).double()
            counts[layer.name] += real.sum()

    passes = visit_gradients(scoring, add)
    values = {name: (total / counts[name]).tolist() for name, total in sums.items()}
    return RawScores(values, f"per:{per}", forward_passes=passes, backward_passes=passes)
