"""Differentiable subset pruning: exactly K heads at every step (Li, Cotterell & Sachan 2021).

Every batch gets gates for weights w + Gumbel noise, relaxed by iterated softmax, so they sum to K
("Differentiable Subset Pruning of Transformer Heads", section on Gumbel top-K, after Xie & Ermon
2019). Each softmax selects one element, which then is removed from the scores r in proportion to
its probability:

    p = softmax(r / T),   r <- r + log(max(1 - p, tiny)),   gates = sum of all p

A round may have several softmaxes over disjoint groups: pools, or layers that must keep a head. The
temperature T falls geometrically, and the gates harden to the K largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from compressor.learned_masks.base import GateLayout, Gates, UnitGroup
from compressor.tasks.batching import moved_to

LEARNING_RATE = 0.5  # at the start; the paper's range is 0.2 to 0.5
# First and last temperature. Neighbors among some hundred weights are about 0.01 apart, and gates
# are open or closed only well below that.
HOT, COLD = 10.0, 1e-3
COOLED = 0.8  # progress with the last temperature; masks are evaluated from here on

LOG_TINY = -87.0  # about the log of the smallest normal number of float32
_OUTSIDE = -1e30  # a logit with probability 0; an infinite one would make NaN gradients


def rounds(layers: Sequence[UnitGroup], pools: Sequence[UnitGroup], total: int) -> list[Tensor]:
    """Plan which groups select one element each, round by round.

    Args:
        layers: with the least number of units each keeps; they select first.
        pools: each the union of some layers, with its number of kept units.
        total: number of units, n.

    Returns:
        For each round [groups, n] bool; a group's row is True at its members.
    """
    by_round = [
        [layer.members for layer in layers if layer.count > turn]
        for turn in range(max((layer.count for layer in layers), default=0))
    ]
    left = [
        pool.count - sum(x.count for x in layers if set(x.members) <= set(pool.members))
        for pool in pools
    ]
    for turn in range(max(left, default=0)):
        by_round.append([p.members for p, count in zip(pools, left, strict=True) if count > turn])
    plan = []
    for groups in by_round:
        rows = torch.zeros(len(groups), total, dtype=torch.bool)
        for row, members in zip(rows, groups, strict=True):
            row[list(members)] = True
        plan.append(rows)
    return plan


def relaxed_subset(scores: Tensor, plan: Sequence[Tensor], temperature: float) -> Tensor:
    """Relaxed gates that sum to the number of elements that a plan selects.

    A gate can exceed 1 while the temperature is high.

    Args:
        scores: noisy, [n].
        plan: from `rounds`; without any round all gates are 0.
        temperature: above 0; the lower, the nearer gates are to 0 and 1.

    Returns:
        [n], differentiable in `scores`.
    """
    gates = scores * 0  # part of the autograd graph also without rounds
    for rows in plan:
        logits = torch.where(rows, scores / temperature, _OUTSIDE)  # [groups, n]
        share = torch.softmax(logits, -1)
        gates = gates + share.sum(0)
        scores = scores + _log_rest(logits, share).sum(0)
    return gates


def _log_rest(logits: Tensor, share: Tensor) -> Tensor:
    """log(1 - p), [groups, n], at least LOG_TINY, also where p is 1 within rounding.

    For the largest p in a row, 1 - p is computed as the sum of all others: the subtraction would
    lose its digits.
    """
    largest = torch.zeros_like(logits, dtype=torch.bool)
    largest.scatter_(-1, logits.argmax(-1, keepdim=True), True)
    others = torch.logsumexp(logits.masked_fill(largest, _OUTSIDE), -1, keepdim=True)
    total = torch.logsumexp(logits, -1, keepdim=True)
    small = torch.log1p(-share.masked_fill(largest, 0.0))
    return torch.where(largest, others - total, small).clamp_min(LOG_TINY)


class SubsetGates(Gates):
    """Gates with a weight each, [n].

    Args:
        layout: the position of each unit's gate.
        device: where the weights are.
        estimator: `gumbel` for relaxed gates, `straight-through` for hard ones with the gradient of
            relaxed ones.
        learning_rate: of the weights; None for `LEARNING_RATE`.
    """

    def __init__(
        self, layout: GateLayout, device: str, estimator: str, learning_rate: float | None
    ) -> None:
        super().__init__(layout, torch.zeros(layout.total, device=device))
        self.estimator = estimator
        plan = rounds(layout.layer_groups, list(layout.pools.values()), layout.total)
        self.rounds = [rows.to(device) for rows in plan]
        self.rate = learning_rate or LEARNING_RATE

    def temperature(self, progress: float) -> float:
        """The temperature at this point: it falls geometrically from HOT to COLD."""
        return float(HOT * (COLD / HOT) ** min(1.0, progress / COOLED))

    @override
    def groups(self) -> list[dict[str, Any]]:
        # As the temperature falls, gradients become rare and large, and steps of Adam more random,
        # so the learning rate decays.
        rate = {"lr": self.rate, "decay": True, "weight_decay": 0.0, "clip": float("inf")}
        return [{"params": [self.values], **rate}]

    @override
    def draw(self, progress: float) -> Tensor:
        noise = torch.empty(self.layout.total).exponential_().log().neg()  # standard Gumbel
        scores = self.values + moved_to(self.values.device, noise)
        relaxed = relaxed_subset(scores, self.rounds, self.temperature(progress))
        if self.estimator == "gumbel":
            return relaxed
        hard = self.layout.flat(self.layout.exact_mask(scores)).to(relaxed.device)
        return hard + (relaxed - relaxed.detach())  # `hard` exactly, with the gradient of `relaxed`

    @override
    def without_noise(self, progress: float) -> Tensor:
        return relaxed_subset(self.values, self.rounds, self.temperature(progress))

    @override
    def converged(self, progress: float) -> bool:
        return progress >= COOLED

    @override
    def status(self, progress: float) -> str:
        kept = sum(pool.count for pool in self.layout.pools.values())
        return f"{kept} of {self.layout.total} heads, temperature {self.temperature(progress):.3g}"

    @override
    def signature(self) -> str:
        return (
            f"estimator:{self.estimator}|temperature:{HOT:g}-{COLD:g}"
            f"|gate-learning-rate:{self.rate:g}"
        )
