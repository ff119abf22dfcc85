"""Hard concrete gates with an expected-L0 penalty (Louizos et al. 2018; Voita et al. 2019).

One gate per head, or per neuron as in CoFi, and one draw of the noise per batch, as in Voita et al.
The term added to the loss is

    lambda * sum of P(g != 0)        with a penalty, which determines the head count, or
    CoFi's Lagrangian                with a count, see `compressor.learned_masks.lagrangian`.

A sublayer counts with at least its floor, so closing more of its gates lowers no penalty.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compressor.learned_masks.base import Gates
from compressor.learned_masks.hard_concrete_distribution import (
    expected_gate,
    open_probability,
    sample,
)
from compressor.learned_masks.lagrangian import RATE, Lagrangian
from compressor.learned_masks.layout import GateLayout
from compressor.model.sublayers import UNITS_OF, Mask, units_of

START = 2.0  # log alpha: gates are 0 in 6 % of the draws, so that the model starts as it was
LEARNING_RATE = 0.1
# With a penalty the head count is never final; masks are evaluated from this progress on.
EVALUATED_FROM = 0.5
UNITS = frozenset(UNITS_OF.values())


class HardConcreteGates(Gates):
    """Gates with a parameter log alpha each, [n].

    Args:
        penalty: Voita et al.'s lambda, in units of the loss (nats) per open head. None: the
            layout's counts are the targets.
        gate_learning_rate: None is `LEARNING_RATE`.
    """

    def __init__(
        self,
        layout: GateLayout,
        device: str = "cpu",
        penalty: float | None = None,
        gate_learning_rate: float | None = None,
    ) -> None:
        super().__init__(layout)
        self.per_head = penalty
        self.log_alpha = torch.full((layout.total,), START, device=device, requires_grad=True)
        self.lagrangian: Lagrangian | None = None
        if penalty is None:
            self.lagrangian = Lagrangian(list(layout.pools.values()), layout.pool_of, device)
        self.rate = gate_learning_rate or LEARNING_RATE

    def groups(self) -> list[dict[str, Any]]:
        constant = {"decay": False, "weight_decay": 0.0, "clip": float("inf")}
        groups = [{"params": [self.log_alpha], "lr": self.rate, **constant}]
        if self.lagrangian is not None:
            groups.append({"params": [self.lagrangian.multipliers], "lr": RATE, **constant})
        return groups

    def tensors(self) -> dict[str, Tensor]:
        tensors = {"log_alpha": self.log_alpha}
        if self.lagrangian is not None:
            tensors["multipliers"] = self.lagrangian.multipliers
            tensors["sensitivity"] = self.lagrangian.sensitivity
        return tensors

    def draw(self, progress: float) -> Tensor:
        uniform = torch.rand(self.layout.total).to(self.log_alpha.device)
        gates = sample(self.log_alpha, uniform)
        if self.lagrangian is not None:
            gates.register_hook(self.lagrangian.observe)
        return gates

    def take_step(self) -> None:
        if self.lagrangian is not None:
            self.lagrangian.take_step()

    def without_noise(self, progress: float) -> Tensor:
        return expected_gate(self.log_alpha)

    def expected(self) -> Tensor:
        """Expected number of open gates of each pool, [pools]; none counts below its floor."""
        return self.layout.count(open_probability(self.log_alpha))

    def penalty(self, progress: float) -> Tensor:
        if self.lagrangian is None:
            assert self.per_head is not None
            return self.per_head * self.expected().sum()
        return self.lagrangian.penalty(self.expected(), progress)

    def mask_penalty(self, mask: Mask) -> float:
        return 0.0 if self.per_head is None else self.per_head * mask.count()

    def scores(self) -> Tensor:
        return self.log_alpha

    def mask(self) -> Mask:
        if self.lagrangian is not None:
            return self.layout.exact_mask(self.log_alpha)
        log_alpha = self.log_alpha.detach().cpu()
        return self.layout.mask_of(log_alpha, log_alpha > 0)  # 1 is then more probable than 0

    def converged(self, progress: float) -> bool:
        if self.lagrangian is None:
            return progress >= EVALUATED_FROM
        return self.lagrangian.reached(self.expected().detach(), progress)

    def status(self, progress: float) -> str:
        expected = self.expected().tolist()
        if self.lagrangian is None:
            return f"{expected[0]:.1f} of {self.layout.total} heads expected"
        targets = self.lagrangian.target(progress).tolist()
        multipliers = self.lagrangian.multipliers.tolist()
        return "; ".join(
            f"{count:,.1f} {units_of(name)} expected{'' if name in UNITS else f' of {name}'} "
            f"(target {target:,.1f}, lambda {linear:.3f} and {square:.3f})"
            for name, count, target, (linear, square) in zip(
                self.layout.pools, expected, targets, multipliers, strict=True
            )
        )

    def signature(self) -> str:
        goal = "lagrangian" if self.per_head is None else f"penalty:{self.per_head:g}"
        return f"{goal}|start:{START:g}|gate-learning-rate:{self.rate:g}"
