"""The hard concrete distribution: a random gate that is often exactly 0 or exactly 1.

Louizos, Welling & Kingma 2018, "Learning Sparse Neural Networks through L0 Regularization",
section 2.2; for heads Voita et al. 2019, section "Method" of pruning attention heads. A concrete
variable s in (0, 1) is stretched to (GAMMA, ZETA) and cut off at 0 and 1:

    s = sigmoid((log u - log(1 - u) + log alpha) / BETA),   u uniform in (0, 1)
    g = min(1, max(0, s (ZETA - GAMMA) + GAMMA))
    P(g > x) = sigmoid(log alpha - BETA logit((x - GAMMA) / (ZETA - GAMMA)))   for x in [0, 1)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BETA = 0.33  # temperature of the concrete distribution, as in Voita et al.
GAMMA, ZETA = -0.1, 1.1  # both papers
_SLICES = 200  # of [0, 1], to integrate P(g > x); the error is about 1e-6


def sample(log_alpha: Tensor, uniform: Tensor) -> Tensor:
    """Gates in [0, 1] from uniform noise of the same shape; differentiable in `log_alpha`."""
    concrete = torch.sigmoid((torch.logit(uniform, eps=1e-6) + log_alpha) / BETA)
    return (concrete * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def open_probability(log_alpha: Tensor) -> Tensor:
    """P(g != 0), the summand of the expected L0 norm (equation 12 of Louizos et al.)."""
    return torch.sigmoid(log_alpha - BETA * math.log(-GAMMA / ZETA))


def expected_gate(log_alpha: Tensor) -> Tensor:
    """E[g], of the same shape: the integral of P(g > x) over [0, 1], by the midpoint rule."""
    x = (torch.arange(_SLICES, device=log_alpha.device) + 0.5) / _SLICES
    threshold = BETA * torch.logit((x - GAMMA) / (ZETA - GAMMA))
    return torch.sigmoid(log_alpha.unsqueeze(-1) - threshold).mean(-1)
