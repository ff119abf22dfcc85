"""Units of a model: amounts of them as text, what may go, and from scores to a mask.

An amount is written `0.5` (a fraction) or `36` (a count) of heads, or per pool:
`heads=0.7,neurons=0.5`. A pool is all heads, all neurons, or one kind of sublayer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

from compressor.errors import UsageError, did_you_mean
from compressor.model.sublayers import (
    UNITS_OF,
    Mask,
    Scores,
    Units,
    kind_of,
    layer_of,
    stack_of,
    units_of,
)

HEADS: Units = "heads"
NEURONS: Units = "neurons"
Floors = Mapping[str, int]  # kind -> least number of units in each of its sublayers
# Heads, neurons -> a number: each sublayer keeps a multiple of it, or all that it has.
Multiples = Mapping[str, int]
MULTIPLES: Multiples = {HEADS: 1, NEURONS: 32}  # 32 neurons suit vector units


def parse_amount(mode: Literal["keep", "remove"], text: str, full: Mask) -> dict[str, int]:
    """Read `--keep` or `--remove`: the units to keep per pool; other pools keep all of theirs."""
    option, keep = f"--{mode}", dict[str, int]()
    for pool, amount in _parts(option, text, [HEADS, NEURONS, *full.kinds()], HEADS).items():
        total, units = full.total(pool), UNITS_OF.get(pool, pool)
        try:
            if amount.isdecimal():
                count = int(amount)
            else:
                share = float(amount.rstrip("%")) / (100 if amount.endswith("%") else 1)
                count = int(share * total + 0.5) if 0 <= share <= 1 else -1  # the nearest unit
        except ValueError:
            count = -1
        if not 0 <= count <= total:
            known = f"neither a fraction (0.5, 50%) nor a number of {units} up to {total:,}"
            raise _invalid(option, text, f"{amount!r} is {known}")
        keep[pool] = count if mode == "keep" else total - count
    for pool in keep:
        if pool in UNITS_OF and UNITS_OF[pool] in keep:
            problem = f"{pool} is among the {UNITS_OF[pool]} already; give either"
            raise _invalid(option, text, problem)
    return keep


def parse_multiples(text: str) -> dict[str, int]:
    """Read `--multiple`: `64` of neurons, or `heads=2,neurons=64`."""
    return {**MULTIPLES, **_numbers("--multiple", text, [HEADS, NEURONS], NEURONS, least=1)}


def parse_floors(text: str, full: Mask) -> dict[str, int]:
    """Read `--floor`: `1` (of heads), or per pool `cross=2,neurons=64`.

    Kinds that are not named get 1 head, or no neuron.
    """
    floors = {kind: int(UNITS_OF[kind] == HEADS) for kind in full.kinds()}
    for pool, number in _numbers("--floor", text, [HEADS, NEURONS, *floors], HEADS).items():
        floors.update({kind: number for kind in floors if pool in (kind, UNITS_OF[kind])})
    return floors


def parse_layers(text: str, full: Mask) -> dict[str, int]:
    """Read `--drop-layers`: `encoder=1,decoder=2`; stack -> number of layers."""
    layers = Counter(layer.partition(".")[0] for layer in full.layers())
    numbers = _numbers("--drop-layers", text, layers, least=1)
    for stack, number in numbers.items():
        if number >= layers[stack]:
            problem = f"the {stack} has {layers[stack]} layers and keeps at least one; drop fewer"
            raise _invalid("--drop-layers", text, problem)
    return numbers


def _numbers(
    option: str, text: str, names: Collection[str], usual: str = "", least: int = 0
) -> dict[str, int]:
    parts = _parts(option, text, names, usual)
    for amount in parts.values():
        if not amount.isdecimal() or int(amount) < least:
            raise _invalid(option, text, f"{amount!r} is no whole number from {least}; give one")
    return {name: int(amount) for name, amount in parts.items()}


def _parts(option: str, text: str, names: Collection[str], usual: str) -> dict[str, str]:
    """Name -> amount; a text without a name is of the usual one, if there is one."""
    if usual and "=" not in text:
        return {usual: text.strip()}
    parts: dict[str, str] = {}
    for part in text.split(","):
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        if not equals or name in parts:
            example = f"{option} {next(iter(names))}=1"
            raise _invalid(option, text, f"write each as NAME=AMOUNT once, as in {example}")
        if name not in names:
            raise UsageError(
                f"{option} {text}: the model has no {name!r}; there are {', '.join(names)}"
                + did_you_mean(name, names),
                id="kind-unknown",
            )
        parts[name] = amount
    return parts


def _invalid(option: str, text: str, problem: str) -> UsageError:
    return UsageError(f"{option} {text} is not possible: {problem}", id="budget-invalid")


class Group(NamedTuple):
    """Units that are removed together: of one sublayer, or of those that keep equally many."""

    score: float  # the mean of theirs
    units: tuple[tuple[str, int], ...]  # sublayer and number of each


def removal_groups(
    scores: Scores, mask: Mask, floors: Floors, multiples: Multiples, even: bool = False
) -> list[list[Group]]:
    """What can go from each sublayer that has scores, in ascending order, down to its floor.

    With `even`, attentions of a stack keep as many heads, so one of each goes at a time; those with
    more lose them first, those without any are left out.
    """
    per_sublayer = []
    for names in lose_together(list(scores.values), even):
        kept = {
            name: sorted(mask.kept(name), key=lambda unit: (scores.values[name][unit], unit))
            for name in names
        }
        size = multiples[units_of(names[0])]
        floor = max(floors[kind_of(name)] for name in names)
        groups, most = [], max(map(len, kept.values()))
        while most > floor:
            first = most % size or size  # the first group may be smaller, later ones are whole
            if most - first < floor:
                break
            most -= first
            # All but the last `most`, of each sublayer that has more than that.
            removed = [(name, unit) for name in names for unit in kept[name][: -most or None]]
            kept = {name: units[-most:] if most else [] for name, units in kept.items()}
            mean = sum(scores.values[name][unit] for name, unit in removed) / len(removed)
            groups.append(Group(mean, tuple(removed)))
        per_sublayer.append(groups)
    return per_sublayer


def lose_together(names: Sequence[str], even: bool) -> list[list[str]]:
    """Sublayers in groups that lose units together: with `even`, the attentions of a stack."""
    groups: dict[str, list[str]] = {}
    for name in names:
        tied = even and units_of(name) == HEADS
        groups.setdefault(stack_of(name) if tied else name, []).append(name)
    return list(groups.values())


def select(
    scores: Scores,
    mask: Mask,
    keep: Mapping[str, int],
    floors: Floors,
    multiples: Multiples = MULTIPLES,
) -> Mask:
    """Remove the least important units of `mask` until as many are left per pool as `keep` wants.

    Of units in groups as few are left as groups allow without falling below that.
    """
    excess = {pool: mask.count(pool) - wanted for pool, wanted in keep.items()}
    ascending = sorted(
        (group.score, position, number, group)
        for position, groups in enumerate(removal_groups(scores, mask, floors, multiples))
        for number, group in enumerate(groups)
    )
    removed: list[tuple[str, int]] = []
    stopped = set()
    for *_, group in ascending:
        name = group.units[0][0]
        kind = kind_of(name)
        pool = kind if kind in excess else units_of(name)
        if name in stopped or excess.get(pool, 0) < len(group.units):
            stopped.add(name)  # what comes after it in the sublayer would leave it behind
            continue
        excess[pool] -= len(group.units)
        removed += group.units
    return mask.without(removed)


def latest_scores(old: Scores, new: Scores, mask: Mask) -> Scores:
    """New scores of the units that `mask` keeps, the old ones of those that are removed."""
    values = {
        name: tuple(
            n if keep else o
            for o, n, keep in zip(old.values[name], new.values[name], mask.keep[name], strict=True)
        )
        for name in new.values
    }
    cost = {key: old.cost[key] + new.cost[key] for key in new.cost}
    return Scores(values, new.method, new.signature, cost)


@dataclass(frozen=True)
class UnitCosts:
    """Multiply-adds over the rows, everything counted.

    Args:
        dense: of the whole dense model.
        units: kind of sublayer -> of one of its units.
        tokens: how many a translator's dense decoder scores; 0 for a classifier.
        token: of one of them.
        units_of_one_token: kind -> of one of its units in the last layer, where that computes one
            token alone; empty where it computes all.
    """

    dense: float
    units: Mapping[str, float]
    tokens: int = 0
    token: float = 0.0
    units_of_one_token: Mapping[str, float] = field(default_factory=dict)

    def per_unit(self, mask: Mask) -> dict[str, float]:
        """Multiply-adds of one unit of each sublayer, of the model that skips what a mask drops."""
        last = max(
            (layer for layer in mask.layers() if layer not in mask.dropped),
            key=lambda layer: int(layer.rpartition(".")[2]),
            default="",
        )
        of_last = self.units_of_one_token or self.units
        return {
            name: (of_last if layer_of(name) == last else self.units)[kind_of(name)]
            for name in mask.keep
        }

    def share(self, mask: Mask, tokens: int | None = None) -> float:
        """What a mask leaves of them; `tokens` are the pruned model's, None for as many."""
        saved = 0.0 if tokens is None else self.token * (self.tokens - tokens)
        counts = mask.counts()
        dense, left = self.per_unit(Mask(mask.keep)), self.per_unit(mask)
        saved += sum(
            dense[name] * total - left[name] * counts[name] for name, total in mask.totals().items()
        )
        return 1 - saved / self.dense


def cost_of(group: Group, per_unit: Mapping[str, float]) -> float:
    """Multiply-adds of the units of a group, from those of one unit of each sublayer."""
    return sum(per_unit[name] for name, _ in group.units)


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
        shares, per_unit = [self.costs.share(self.start)], self.costs.per_unit(self.start)
        # From each mask to the next, without a sum over all sublayers for every one.
        for group in self.groups:
            shares.append(shares[-1] - cost_of(group, per_unit) / self.costs.dense)
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
        raise UsageError(
            f"--macs {share:g} is too low; the minimum is {self.shares[-1]:.3f}; ask for more, or "
            "prune both heads and neurons with --floor 0",
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
    ranked, per_unit = [], costs.per_unit(mask)
    for position, groups in enumerate(removal_groups(scores, mask, floors, multiples, even)):
        # Both per unit: a group's score is the mean of its units. Where attentions that lose heads
        # together had different numbers of them, a later group may be cheaper than one before it.
        errors = accumulate((x.score / (cost_of(x, per_unit) / len(x.units)) for x in groups), max)
        for number, (error, group) in enumerate(zip(errors, groups, strict=True)):
            ranked.append((error, position, number, group))
    # Equal errors go by position, and a sublayer's own groups stay in their order.
    return RemovalPath(mask, tuple(group for *_, group in sorted(ranked)), costs)
