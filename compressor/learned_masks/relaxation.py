"""The K largest of n scores, relaxed: gates that sum to K and have a gradient.

Li, Cotterell & Sachan 2021, "Differentiable Subset Pruning of Transformer Heads", section on
Gumbel top-K (after Xie & Ermon 2019). Each softmax selects one element, which then is removed from
the scores r in proportion to its probability, before the next softmax:

    p = softmax(r / T),   r <- r + log(max(1 - p, tiny)),   gates = sum of all p

A round may have several softmaxes over disjoint groups: one per pool of heads that are counted
separately, or one per layer that must keep a head (`rounds`). As the temperature T falls to zero
the gates become 1 for the largest of each group in each round, and 0 for the rest: with floors,
the same heads that `compressor.budgets.units.select` keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LOG_TINY = -87.0  # about the log of the smallest normal number of float32
_OUTSIDE = -1e30  # a logit with probability 0; an infinite one would make NaN gradients


@dataclass(frozen=True)
class UnitGroup:
    """Positions of units, and how many of them are selected."""

    members: tuple[int, ...]
    count: int


def rounds(layers: Sequence[UnitGroup], pools: Sequence[UnitGroup], total: int) -> list[Tensor]:
    """The groups that select one element each, round by round.

    Args:
        layers: with the least number of units each keeps; they select first.
        pools: each the union of some of the layers, with its total number of kept units.
        total: number of units, n.

    Returns:
        For each round [groups, n] bool; a group's row is True at its members.
    """
    groups_of = [
        [layer.members for layer in layers if layer.count > turn]
        for turn in range(max((layer.count for layer in layers), default=0))
    ]
    left = [
        pool.count - sum(x.count for x in layers if set(x.members) <= set(pool.members))
        for pool in pools
    ]
    for turn in range(max(left, default=0)):
        groups_of.append([p.members for p, count in zip(pools, left, strict=True) if count > turn])
    return [_rows(groups, total) for groups in groups_of]


def _rows(groups: Sequence[tuple[int, ...]], total: int) -> Tensor:
    rows = torch.zeros(len(groups), total, dtype=torch.bool)
    for row, members in zip(rows, groups, strict=True):
        row[list(members)] = True
    return rows


def relaxed_subset(scores: Tensor, plan: Sequence[Tensor], temperature: float) -> Tensor:
    """Gates [n] that sum to the number of elements that `plan` selects.

    An entry can exceed 1 while the temperature is high.

    Args:
        scores: [n], with their noise.
        plan: from `rounds`; without rounds the gates are zero.
        temperature: above zero.
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

    For the largest p in each row, 1 - p is computed as the sum of all others, without cancellation.
    """
    largest = torch.zeros_like(logits, dtype=torch.bool)
    largest.scatter_(-1, logits.argmax(-1, keepdim=True), True)
    others = torch.logsumexp(logits.masked_fill(largest, _OUTSIDE), -1, keepdim=True)
    total = torch.logsumexp(logits, -1, keepdim=True)
    small = torch.log1p(-share.masked_fill(largest, 0.0))
    return torch.where(largest, others - total, small).clamp_min(LOG_TINY)


def gumbel_noise(count: int) -> Tensor:
    """Standard Gumbel noise [count], always from torch's CPU generator."""
    return torch.empty(count).exponential_().log().neg()


def straight_through(hard: Tensor, relaxed: Tensor) -> Tensor:
    """`hard` in the forward pass, exactly; the gradient of `relaxed` in the backward pass."""
    return hard + (relaxed - relaxed.detach())
