"""Reaching a wanted number of units: Lagrange multipliers that rise while there are too many.

CoFi (Xia, Zhong & Chen 2022, "Structured Pruning Learns Compact and Accurate Models", section on
the sparsity objective). With s the expected number of open gates of a pool and t its target, both
in shares of the pool,

    loss + a (s - t) + b (s - t)^2,    gradient descent on the gates, ascent on a and b,

and t falls linearly from 1 to the wanted share while training warms up. The multipliers are in
units of how much the loss cares for a gate (the running mean of |dL/dg| over the pool, times the
pool's size): what a head is worth differs a hundredfold between models, and from what a neuron is
worth, and so would the multipliers' rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from compressor import parallel
from compressor.learned_masks.relaxation import UnitGroup

WARMUP = 0.5  # share of the training over which the target falls to the wanted count
RATE = 0.02  # of the multipliers, per step of Adam; faster ones overshoot the target
# The square's multiplier at the start: five units too many in two hundred are then answered at
# once, with a pull as strong as the loss's mean pull on a gate, and not after the linear multiplier
# has grown.
SQUARE = 20.0
_MEMORY = 0.9  # of the running mean
# Share of a pool by which its expected number of units may miss the wanted one.
_TOLERANCE = 0.02


class Lagrangian:
    """One pair of multipliers per pool.

    Args:
        pools: the units that are counted together, and how many of them to keep.
        pool_of: number of the pool of each gate, [n].
    """

    def __init__(self, pools: Sequence[UnitGroup], pool_of: Tensor, device: str) -> None:
        start = torch.tensor([[0.0, SQUARE]], device=device)
        self.multipliers = start.repeat(len(pools), 1).requires_grad_()
        self.sensitivity = torch.zeros(len(pools), device=device)  # nats per gate
        self._pool_of = pool_of.to(device)
        self._gradient: Tensor | None = None  # of the batch, as far as it has been observed
        self._sizes = torch.tensor([float(len(pool.members)) for pool in pools], device=device)
        self._wanted = torch.tensor([float(pool.count) for pool in pools], device=device)

    def target(self, progress: float) -> Tensor:
        """Target count of each pool at this point of the training, [pools]."""
        share = min(1.0, progress / WARMUP)
        return self._sizes + (self._wanted - self._sizes) * share

    def observe(self, gradient: Tensor) -> None:
        """Take note of dL/dg of all gates, [n], or of what a part of a batch adds to it."""
        part = gradient.detach()
        self._gradient = part if self._gradient is None else self._gradient + part

    def take_step(self) -> None:
        """All parts of a batch were observed, on all ranks."""
        sums = torch.zeros_like(self.sensitivity)
        gradient = sums.new_zeros(len(self._pool_of)) if self._gradient is None else self._gradient
        parallel.add_up(gradient)
        sums.index_add_(0, self._pool_of, gradient.abs().to(sums))
        now = sums / self._sizes.clamp_min(1)
        memory = (self.sensitivity > 0) * _MEMORY  # nothing to remember in the first step
        self.sensitivity.mul_(memory).add_((1 - memory) * now)
        self._gradient = None

    def penalty(self, expected: Tensor, progress: float) -> Tensor:
        """A term whose value is zero and whose gradient does both, descent and ascent.

        Args:
            expected: expected number of open gates of each pool, [pools].
        """
        excess = (expected - self.target(progress)) / self._sizes
        linear, square = self.multipliers.unbind(1)
        down = linear.detach() * excess + square.detach() * excess**2
        up = linear * excess.detach() + square * excess.detach() ** 2
        unit = self.sensitivity * self._sizes
        return (unit * (down - up)).sum()

    def reached(self, expected: Tensor, progress: float) -> bool:
        """Whether warm-up is over and every pool has the wanted count, within 2 %."""
        close = (expected - self._wanted).abs() <= (_TOLERANCE * self._sizes).clamp_min(0.5)
        return progress >= WARMUP and bool(close.all())
