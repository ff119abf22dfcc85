"""Which units go first when heads and neurons compete: one path of nested masks.

Groups of units go by error per multiply-add: the greedy form of the knapsack in ZipLM (Kurtic et
al. 2023) and Kwon et al. 2022. Nothing is measured, so the masks are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from compressor.budgets.units import MULTIPLES, Floors, Group, Multiples, removal_groups
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores, kind_of


@dataclass(frozen=True)
class UnitCosts:
    """Multiply-adds over the rows, everything counted."""

    dense: float  # of the whole dense model
    units: Mapping[str, float]  # kind of sublayer -> of one of its units
    tokens: int = 0  # how many a translator's dense decoder scores; 0 for a classifier
    token: float = 0.0  # of one of them

    def of(self, group: Group) -> float:
        return sum(self.units[kind_of(name)] for name, _ in group.units)

    def share(self, mask: Mask, tokens: int | None = None) -> float:
        """What a mask leaves of them; `tokens` as in `tokens`, of the pruned model, if others."""
        saved = 0.0 if tokens is None else self.token * (self.tokens - tokens)
        counts = mask.counts()
        saved += sum(
            self.units[kind_of(name)] * (total - counts[name])
            for name, total in mask.totals().items()
        )
        return 1 - saved / self.dense


class PathCut(NamedTuple):
    """A mask of a path, the dense model's at position 0, and its share of the multiply-adds."""

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
        """Number of masks."""
        return len(self.groups) + 1

    @cached_property
    def shares(self) -> list[float]:
        """Share of the dense model's multiply-adds that each mask leaves."""
        shares = [self.costs.share(self.start)]
        # From each mask to the next, without a sum over all sublayers for every one.
        for group in self.groups:
            shares.append(shares[-1] - self.costs.of(group) / self.costs.dense)
        return shares

    def mask(self, position: int) -> Mask:
        return self.start.without(x for group in self.groups[:position] for x in group.units)

    def cut(self, position: int) -> PathCut:
        return PathCut(position, self.mask(position), self.shares[position])

    def position_at(self, share: float) -> int:
        """The first position that leaves at most a share; UsageError if none does."""
        rounding = 1e-12  # shares are sums of thousands of differences
        for position, left in enumerate(self.shares):
            if left <= share + rounding:
                return position
        raise UsageError(
            f"--macs {share:g} cannot be had: {self.shares[-1]:.3f} of the multiply-adds are left "
            "when all is removed that may be; ask for more, or prune both heads and neurons with "
            "--floor 0",
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
    For `even` see `removal_groups`.
    """
    ranked = []
    for position, groups in enumerate(removal_groups(scores, mask, floors, multiples, even)):
        # Both per unit: a group's score is the mean of its units. Where attentions that lose heads
        # together had different numbers of them, a later group may be cheaper than one that goes
        # before it; it counts as much as that one.
        errors = accumulate((x.score / (costs.of(x) / len(x.units)) for x in groups), max)
        for number, (error, group) in enumerate(zip(errors, groups, strict=True)):
            ranked.append((error, position, number, group))
    # Equal errors go by position, so that ties fall alike everywhere; a sublayer's own groups stay
    # in their order.
    return RemovalPath(mask, tuple(group for *_, group in sorted(ranked)), costs)
