"""Paths of masks within one another, from all units to the fewest, by error per cost."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from compressor.budgets.token_order import TokenOrder, error_per_cost
from compressor.budgets.unit_costs import UnitCosts, WorkLeft
from compressor.budgets.units import MULTIPLES, Floors, Group, Multiples, removal_groups
from compressor.errors import UsageError
from compressor.model.sublayers import TOKEN_KIND, Mask, Scores, kind_of


class PathCut(NamedTuple):
    """A mask on a path of cuts, and the share of the multiply-adds that it leaves."""

    position: int
    mask: Mask
    macs: float


@dataclass(frozen=True)
class RemovalPath:
    """Masks that lie within one another, from `start` to the smallest; `groups` go in order."""

    start: Mask
    groups: tuple[Group, ...]
    costs: UnitCosts

    def __len__(self) -> int:
        return len(self.groups) + 1

    @cached_property
    def shares(self) -> list[float]:
        """The share of the multiply-adds that each mask leaves."""
        shares, work = [self.costs.share(self.start)], WorkLeft(self.costs, self.start)
        # From each mask to the next, without a sum over all sublayers for every one.
        for group in self.groups:
            shares.append(shares[-1] - work.remove(group.units) / self.costs.dense)
        return shares

    def mask(self, position: int) -> Mask:
        """The mask at a position, the start being 0."""
        return self.start.without(x for group in self.groups[:position] for x in group.units)

    def position_at(self, share: float) -> int:
        """The first position that leaves at most a share; UsageError if none does."""
        rounding = 1e-12  # shares are sums of thousands of differences
        for position, left in enumerate(self.shares):
            if left <= share + rounding:
                return position
        # Rounded up, so that it can be asked for.
        least = math.ceil(1000 * (self.shares[-1] - rounding)) / 1000
        raise UsageError(
            f"--macs {share:g} is too low; the minimum is {least:.3f}; ask for more, or "
            "prune both heads and neurons (or all, with tokens) with --floor 0",
            id="macs-unreachable",
        )


def removal_path(
    scores: Scores,
    mask: Mask,
    floors: Floors,
    costs: UnitCosts,
    multiples: Multiples = MULTIPLES,
    even: bool = False,
) -> RemovalPath:
    """The path from a mask; only units that have scores go, which are errors.

    As errors within a sublayer only rise, every mask has the least summed error for its cost.
    Where tokens go, too, units cost less with every tenth; then the next is always the one of least
    error for its present cost. For `even` see `removal_groups`.
    """
    all_groups = removal_groups(scores, mask, floors, multiples, even)
    of_tokens = [groups and is_of_tokens(groups[0]) for groups in all_groups]
    if any(of_tokens):
        queues = [x for x, tokens in zip(all_groups, of_tokens, strict=True) if not tokens]
        order = TokenOrder(scores, mask, floors[TOKEN_KIND])
        groups = by_present_cost(queues, order, WorkLeft(costs, mask), scores)
        return RemovalPath(mask, tuple(groups), costs)
    ranked, work = [], WorkLeft(costs, mask)
    for position, groups in enumerate(all_groups):
        # Both per unit: a group's score is the mean of its units. Where attentions that lose heads
        # together had different numbers of them, a later group may be cheaper than one before it.
        ratios = (x.score / (work.cost(x.units) / len(x.units)) for x in groups)
        errors = accumulate(ratios, max)
        for number, (error, group) in enumerate(zip(errors, groups, strict=True)):
            ranked.append((error, position, number, group))
    # Equal errors go by position, and a sublayer's own groups stay in their order.
    return RemovalPath(mask, tuple(group for *_, group in sorted(ranked)), costs)


def is_of_tokens(group: Group) -> bool:
    """Whether a group is a tenth of the tokens of a layer."""
    return kind_of(group.units[0][0]) == TOKEN_KIND


def by_present_cost(
    queues: Sequence[Sequence[Group]], order: TokenOrder, work: WorkLeft, scores: Scores
) -> list[Group]:
    """All groups and all tokens that may go, always the least error for its present cost.

    Args:
        queues: of heads and neurons; those of a sublayer go in their order.
        order: of the tokens.
        work: that is left of the model; it changes.
        scores: of the tokens.
    """
    path: list[Group] = []
    gone, worst = [0] * len(queues), [0.0] * len(queues)

    def next_of(queue: int) -> tuple[float, list[Group]] | None:
        if queue == len(queues):
            found = order.next(work.of_tokens())
            if found is None:
                return None
            ratio, units = found
            return ratio, [
                Group(scores.values[name][unit], ((name, unit),)) for name, unit in units
            ]
        if gone[queue] == len(queues[queue]):
            return None
        group = queues[queue][gone[queue]]
        ratio = error_per_cost(group.score * len(group.units), work.cost(group.units))
        return max(worst[queue], ratio), [group]

    # The last queue is that of the tokens. Costs only fall, and ratios rise: what is least by an
    # old ratio may have a larger one now, and is looked at again in its turn.
    heap = [(found[0], x) for x in range(len(queues) + 1) if (found := next_of(x))]
    heapq.heapify(heap)
    while heap:
        known, queue = heapq.heappop(heap)
        found = next_of(queue)
        assert found is not None
        ratio, groups = found
        if ratio > known:
            heapq.heappush(heap, (ratio, queue))
            continue
        path += groups
        units = [unit for group in groups for unit in group.units]
        work.remove(units)
        if queue == len(queues):
            order.remove(units)
        else:
            gone[queue], worst[queue] = gone[queue] + 1, ratio
        if (following := next_of(queue)) is not None:
            heapq.heappush(heap, (following[0], queue))
    return path
