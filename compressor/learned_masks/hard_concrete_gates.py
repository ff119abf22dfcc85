"""Hard concrete gates with an expected-L0 penalty (Louizos et al. 2018; Voita et al. 2019).

A hard concrete gate is random, and often exactly 0 or exactly 1 (Louizos, Welling & Kingma 2018,
"Learning Sparse Neural Networks through L0 Regularization", section 2.2). A concrete variable s in
(0, 1) is stretched to (GAMMA, ZETA) and cut off at 0 and 1:

    s = sigmoid((log u - log(1 - u) + log alpha) / BETA),   u uniform in (0, 1)
    g = min(1, max(0, s (ZETA - GAMMA) + GAMMA))
    P(g > x) = sigmoid(log alpha - BETA logit((x - GAMMA) / (ZETA - GAMMA)))   for x in [0, 1)

To the loss is added lambda * sum of P(g != 0), or `Lagrangian` where units are counted.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from compressor import parallel
from compressor.learned_masks.base import GateLayout, Gates
from compressor.model.sublayers import UNITS_OF, Mask, units_of
from compressor.tasks.batching import moved_to

BETA = 0.33  # temperature of the concrete distribution, as in Voita et al.
GAMMA, ZETA = -0.1, 1.1  # both papers
_SLICES = 200  # of [0, 1], to integrate P(g > x); the error is about 1e-6

START = 2.0  # log alpha: gates are 0 in 6 % of the draws, so that the model starts as it was
LEARNING_RATE = 0.1
# With a penalty the head count is never final; masks are evaluated from this progress on.
EVALUATED_FROM = 0.5

WARMUP = 0.5  # share of the training over which the target falls to the wanted count
MULTIPLIER_RATE = 0.02  # per step of Adam; faster multipliers overshoot the target
# Initial multiplier of the square: an excess of five units in two hundred then has a gradient as
# large as the loss's mean gradient at a gate, before the linear multiplier has grown.
SQUARE = 20.0
_MEMORY = 0.9  # of the running mean
_TOLERANCE = 0.02  # share of a pool by which its expected number of units may miss the wanted one


def sample(log_alpha: Tensor, uniform: Tensor) -> Tensor:
    """Draw hard concrete gates (section 2.2 of Louizos et al.).

    Args:
        log_alpha: parameters, of any shape.
        uniform: noise in (0, 1), of the same shape.

    Returns:
        Gates in [0, 1], of the same shape, differentiable in `log_alpha`.
    """
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


class Lagrangian:
    """Lagrange multipliers that lead the number of units of each pool to its target.

    CoFi (Xia, Zhong & Chen 2022, "Structured Pruning Learns Compact and Accurate Models", section
    on the sparsity objective). With s the expected number of open gates of a pool and t its target,
    both in shares of the pool,

        loss + a (s - t) + b (s - t)^2,    gradient descent on the gates, ascent on a and b,

    and t falls linearly from 1 to the wanted share while training warms up. The multipliers are in
    units of the loss's sensitivity to a gate (the running mean of |dL/dg| over the pool, times the
    pool's size), which differs a hundredfold between models; so one learning rate suits all.

    Args:
        layout: the pools, and how many of their units are kept.
        device: where multipliers and gradients are.
    """

    def __init__(self, layout: GateLayout, device: str) -> None:
        pools, start = layout.pools.values(), torch.tensor([[0.0, SQUARE]], device=device)
        self.multipliers = start.repeat(len(pools), 1).requires_grad_()
        self.sensitivity = torch.zeros(len(pools), device=device)  # nats per gate
        self._pool_of = layout.pool_of.to(device)
        self._gradient = torch.zeros(layout.total, device=device)  # of the parts of a batch so far
        self._sizes = torch.tensor([float(len(pool.members)) for pool in pools], device=device)
        self._wanted = torch.tensor([float(pool.count) for pool in pools], device=device)

    def target(self, progress: float) -> Tensor:
        """The target number of units of each pool at this point of the training, [pools]."""
        share = min(1.0, progress / WARMUP)
        return self._sizes + (self._wanted - self._sizes) * share

    def observe(self, gradient: Tensor) -> None:
        """Record dL/dg of all gates, [n], of a batch or a part of one."""
        self._gradient += gradient.detach()

    def take_step(self) -> None:
        """Update the sensitivity after all parts of a batch were observed, on all ranks."""
        parallel.add_up(self._gradient)
        sums = torch.zeros_like(self.sensitivity)
        sums.index_add_(0, self._pool_of, self._gradient.abs())
        now = sums / self._sizes.clamp_min(1)
        memory = (self.sensitivity > 0) * _MEMORY  # 0 in the first step
        self.sensitivity.mul_(memory).add_((1 - memory) * now)
        self._gradient.zero_()

    def penalty(self, expected: Tensor, progress: float) -> Tensor:
        """A zero whose gradient is descent on the gates and ascent on the multipliers.

        Args:
            expected: expected number of open gates of each pool, [pools].
            progress: completed share of the training.

        Returns:
            A scalar in nats.
        """
        excess = (expected - self.target(progress)) / self._sizes
        linear, square = self.multipliers.unbind(1)
        down = linear.detach() * excess + square.detach() * excess**2
        up = linear * excess.detach() + square * excess.detach() ** 2
        unit = self.sensitivity * self._sizes
        return (unit * (down - up)).sum()

    def reached(self, expected: Tensor, progress: float) -> bool:
        """Whether warm-up is over and every pool's expected count is within 2 % of its size."""
        close = (expected - self._wanted).abs() <= (_TOLERANCE * self._sizes).clamp_min(0.5)
        return progress >= WARMUP and bool(close.all())


class HardConcreteGates(Gates):
    """Gates with a parameter log alpha each, [n].

    Args:
        layout: the position of each unit's gate.
        device: where the parameters are.
        penalty: Voita et al.'s lambda, in nats per open head; the number of heads is then whatever
            it leads to. None: the layout says how many units are wanted.
        learning_rate: of the gates; None for `LEARNING_RATE`.
    """

    def __init__(
        self, layout: GateLayout, device: str, penalty: float | None, learning_rate: float | None
    ) -> None:
        super().__init__(layout, torch.full((layout.total,), START, device=device))
        self.per_head = penalty
        self.lagrangian = Lagrangian(layout, device) if penalty is None else None
        self.rate = learning_rate or LEARNING_RATE

    @override
    def groups(self) -> list[dict[str, Any]]:
        constant = {"decay": False, "weight_decay": 0.0, "clip": float("inf")}
        groups = [{"params": [self.values], "lr": self.rate, **constant}]
        if self.lagrangian is not None:
            multipliers = [self.lagrangian.multipliers]
            groups.append({"params": multipliers, "lr": MULTIPLIER_RATE, **constant})
        return groups

    @override
    def tensors(self) -> dict[str, Tensor]:
        lagrangian = self.lagrangian
        if lagrangian is None:
            return super().tensors()
        learned = {"multipliers": lagrangian.multipliers, "sensitivity": lagrangian.sensitivity}
        return super().tensors() | learned

    @override
    def draw(self, progress: float) -> Tensor:
        uniform = moved_to(self.values.device, torch.rand(self.layout.total))
        gates = sample(self.values, uniform)
        if self.lagrangian is not None:
            gates.register_hook(self.lagrangian.observe)
        return gates

    @override
    def take_step(self) -> None:
        if self.lagrangian is not None:
            self.lagrangian.take_step()

    @override
    def without_noise(self, progress: float) -> Tensor:
        return expected_gate(self.values)

    def expected(self) -> Tensor:
        """Expected number of open gates of each pool, [pools]; none counts below its floor."""
        return self.layout.count(open_probability(self.values))

    @override
    def penalty(self, progress: float) -> Tensor:
        if self.lagrangian is None:
            assert self.per_head is not None
            return self.per_head * self.expected().sum()
        return self.lagrangian.penalty(self.expected(), progress)

    @override
    def mask_penalty(self, mask: Mask) -> float:
        return 0.0 if self.per_head is None else self.per_head * mask.count()

    @override
    def mask(self) -> Mask:
        if self.lagrangian is not None:
            return super().mask()
        log_alpha = self.values.detach().cpu()
        return self.layout.mask_of(log_alpha, log_alpha > 0)  # 1 is then more probable than 0

    @override
    def converged(self, progress: float) -> bool:
        if self.lagrangian is None:
            return progress >= EVALUATED_FROM
        return self.lagrangian.reached(self.expected().detach(), progress)

    @override
    def status(self, progress: float) -> str:
        expected = self.expected().tolist()
        if self.lagrangian is None:
            return f"{expected[0]:.1f} of {self.layout.total} heads expected"
        targets = self.lagrangian.target(progress).tolist()
        multipliers = self.lagrangian.multipliers.tolist()
        return "; ".join(
            f"{count:,.1f} {units_of(name)} expected{f' of {name}' if name in UNITS_OF else ''} "
            f"(target {target:,.1f}, lambda {linear:.3f} and {square:.3f})"
            for name, count, target, (linear, square) in zip(
                self.layout.pools, expected, targets, multipliers, strict=True
            )
        )

    @override
    def signature(self) -> str:
        goal = "lagrangian" if self.per_head is None else f"penalty:{self.per_head:g}"
        return f"{goal}|start:{START:g}|gate-learning-rate:{self.rate:g}"
