"""Lagrange multipliers that lead the number of units to its target.

CoFi (Xia, Zhong & Chen 2022, "Structured Pruning Learns Compact and Accurate Models", section on
the sparsity objective). With s the expected number of open gates of a pool and t its target, both
in shares of the pool,

    loss + a (s - t) + b (s - t)^2,    gradient descent on the gates, ascent on a and b,

and t falls linearly from 1 to the wanted share while training warms up. The multipliers are in
units of the loss's sensitivity to a gate (the running mean of |dL/dg| over the pool, times the
pool's size), which differs a hundredfold between models and between heads and neurons; so one
learning rate of the multipliers suits all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from compressor import parallel
from compressor.learned_masks.relaxation import UnitGroup

WARMUP = 0.5  # share of the training over which the target falls to the wanted count
RATE = 0.02  # of the multipliers, per step of Adam; faster ones overshoot the target
# Initial multiplier of the square: an excess of five units in two hundred then has a gradient as
# large as the loss's mean gradient at a gate, before the linear multiplier has grown.
SQUARE = 20.0
_MEMORY = 0.9  # of the running mean
# Share of a pool by which its expected number of units may miss the wanted one.
_TOLERANCE = 0.02


class Lagrangian:
    """One pair of multipliers per pool.

    Args:
        pools: units that are counted together, and how many of them to keep.
        pool_of: number of the pool of each gate, [n].
    """

    def __init__(self, pools: Sequence[UnitGroup], pool_of: Tensor, device: str) -> None:
        start = torch.tensor([[0.0, SQUARE]], device=device)
        self.multipliers = start.repeat(len(pools), 1).requires_grad_()
        self.sensitivity = torch.zeros(len(pools), device=device)  # nats per gate
        self._pool_of = pool_of.to(device)
        self._gradient: Tensor | None = None  # sum over the parts of the batch so far
        self._sizes = torch.tensor([float(len(pool.members)) for pool in pools], device=device)
        self._wanted = torch.tensor([float(pool.count) for pool in pools], device=device)

    def target(self, progress: float) -> Tensor:
        """Target count of each pool at this point of the training, [pools]."""
        share = min(1.0, progress / WARMUP)
        return self._sizes + (self._wanted - self._sizes) * share

    def observe(self, gradient: Tensor) -> None:
        """Record dL/dg of all gates, [n], of a batch or a part of one."""
        part = gradient.detach()
        self._gradient = part if self._gradient is None else self._gradient + part

    def take_step(self) -> None:
        """Update the sensitivity after all parts of a batch were observed, on all ranks."""
        sums = torch.zeros_like(self.sensitivity)
        gradient = sums.new_zeros(len(self._pool_of)) if self._gradient is None else self._gradient
        parallel.add_up(gradient)
        sums.index_add_(0, self._pool_of, gradient.abs().to(sums))
        now = sums / self._sizes.clamp_min(1)
        memory = (self.sensitivity > 0) * _MEMORY  # 0 in the first step
        self.sensitivity.mul_(memory).add_((1 - memory) * now)
        self._gradient = None

    def penalty(self, expected: Tensor, progress: float) -> Tensor:
        """A term of value zero whose gradient is descent on the gates, ascent on the multipliers.

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
