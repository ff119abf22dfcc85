"""Differentiable subset pruning: exactly K heads at every step (Li, Cotterell & Sachan 2021).

Each head has a weight w. Every batch gets gates for w + Gumbel noise, relaxed by iterated softmax
(`compressor.learned_masks.relaxation`), so the gates sum to K in every step. The temperature falls
geometrically and the gates harden; at the end the K largest w are kept. With `straight-through` the
forward pass uses the hard K largest from the start, with the gradient of the relaxed gates. Floors
hold in training as well: each layer's best heads are selected first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compressor.learned_masks.base import Gates
from compressor.learned_masks.layout import GateLayout
from compressor.learned_masks.relaxation import (
    gumbel_noise,
    relaxed_subset,
    rounds,
    straight_through,
)
from compressor.model.sublayers import Mask

LEARNING_RATE = 0.5  # at the start; the paper's range is 0.2 to 0.5
# First and last temperature. Neighbors among some hundred weights are about 0.01 apart, and gates
# are open or closed only well below that.
HOT, COLD = 10.0, 1e-3
COOLED = 0.8  # progress with the last temperature; masks are evaluated from here on


class SubsetGates(Gates):
    """Gates with a weight each, [n].

    Args:
        estimator: relaxed gates (`gumbel`), or hard ones with the gradient of relaxed ones.
        gate_learning_rate: None is `LEARNING_RATE`.
    """

    def __init__(
        self,
        layout: GateLayout,
        device: str = "cpu",
        estimator: str = "gumbel",
        gate_learning_rate: float | None = None,
    ) -> None:
        super().__init__(layout)
        self.estimator = estimator
        self.weight = torch.zeros(layout.total, device=device, requires_grad=True)
        plan = rounds(layout.layer_groups, list(layout.pools.values()), layout.total)
        self.rounds = [rows.to(device) for rows in plan]
        self.rate = gate_learning_rate or LEARNING_RATE

    def temperature(self, progress: float) -> float:
        """Falls geometrically from HOT to COLD."""
        return float(HOT * (COLD / HOT) ** min(1.0, progress / COOLED))

    def groups(self) -> list[dict[str, Any]]:
        # As the temperature falls, gradients become rare and large, and steps of Adam more random,
        # so the learning rate decays.
        rate = {"lr": self.rate, "decay": True, "weight_decay": 0.0, "clip": float("inf")}
        return [{"params": [self.weight], **rate}]

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def draw(self, progress: float) -> Tensor:
        scores = self.weight + gumbel_noise(self.layout.total).to(self.weight.device)
        relaxed = relaxed_subset(scores, self.rounds, self.temperature(progress))
        if self.estimator == "gumbel":
            return relaxed
        hard = self.layout.flat(self.layout.exact_mask(scores)).to(relaxed.device)
        return straight_through(hard, relaxed)

    def without_noise(self, progress: float) -> Tensor:
        return relaxed_subset(self.weight, self.rounds, self.temperature(progress))

    def scores(self) -> Tensor:
        return self.weight

    def mask(self) -> Mask:
        return self.layout.exact_mask(self.weight)

    def converged(self, progress: float) -> bool:
        return progress >= COOLED

    def status(self, progress: float) -> str:
        kept = sum(pool.count for pool in self.layout.pools.values())
        return f"{kept} of {self.layout.total} heads, temperature {self.temperature(progress):.3g}"

    def signature(self) -> str:
        return (
            f"estimator:{self.estimator}|temperature:{HOT:g}-{COLD:g}"
            f"|gate-learning-rate:{self.rate:g}"
        )
