"""Units of a model: amounts of them as text, what may go, and from scores to a mask.

An amount is written `0.5` (a fraction) or `36` (a count) of heads, or per pool:
`heads=0.7,neurons=0.5`, `encoder_self=0.3,cross=0.8`. A pool is all heads, all neurons, or one kind
of sublayer; pools that are not named keep all their units. Floors say how many units every sublayer
must keep. Neurons go in groups, so that what is left suits vector units (`Multiples`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from compressor.errors import UsageError, did_you_mean
from compressor.model.sublayers import (
    KINDS,
    UNITS_OF,
    Mask,
    Scores,
    Units,
    kind_of,
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
    """Read `--keep` or `--remove`: the units to keep per pool, of a model with those of `full`."""
    where, keep = f"--{mode} {text}", {}
    for pool, amount in _parts(text, full, f"--{mode}").items():
        total, unit = full.total(pool), UNITS_OF.get(pool, pool)
        try:
            if amount.isdecimal():
                count = int(amount)
            else:
                share = float(amount.rstrip("%")) / (100 if amount.endswith("%") else 1)
                if not 0 <= share <= 1:  # or NaN
                    raise ValueError
                count = int(share * total + 0.5)  # the nearest unit, half a unit up
        except ValueError as error:
            raise UsageError(
                f"{where}: {amount!r} is neither a fraction (0.5, 50%) nor a number of {unit} (36)",
                id="budget-invalid",
            ) from error
        if count > total:
            raise UsageError(
                f"{where}: there are only {total:,} {unit}; ask for at most that",
                id="budget-too-large",
            )
        keep[pool] = count if mode == "keep" else total - count
    for pool in keep:
        if pool in UNITS_OF and UNITS_OF[pool] in keep:
            raise UsageError(
                f"--{mode} {text}: {pool} is among the {UNITS_OF[pool]} already; give either",
                id="budget-invalid",
            )
    return keep


def parse_multiples(text: str, full: Mask) -> dict[str, int]:
    """Read `--multiple`: `64` of neurons, or `heads=2,neurons=64`."""
    multiples = dict(MULTIPLES)
    parts = _parts(text if "=" in text else f"{NEURONS}={text}", full, "--multiple")
    for units, amount in parts.items():
        if units in UNITS_OF or not amount.isdecimal() or int(amount) < 1:
            raise UsageError(
                f"--multiple {text}: write a number from 1, as in --multiple 64, or "
                "--multiple heads=2,neurons=64",
                id="multiple-invalid",
            )
        multiples[units] = int(amount)
    return multiples


def parse_floors(text: str, full: Mask) -> dict[str, int]:
    """Read `--floor`: `1` (of heads), or per pool `cross=2,neurons=64`.

    Kinds that are not named get 1 head, or no neuron.
    """
    floors = {kind: int(UNITS_OF[kind] == HEADS) for kind in full.kinds()}
    for pool, amount in _parts(text, full, "--floor").items():
        if not amount.isdecimal():
            raise UsageError(
                f"--floor {text}: {amount!r} is not a number of {UNITS_OF.get(pool, pool)}; write "
                "--floor 1, or --floor cross=2",
                id="floor-invalid",
            )
        floors.update({k: int(amount) for k in floors if pool in (k, UNITS_OF[k])})
    return floors


def parse_layers(text: str, full: Mask) -> dict[str, int]:
    """Read `--drop-layers`: `decoder=2`, or `encoder=1,decoder=2`; stack -> number of layers."""
    layers = Counter(layer.partition(".")[0] for layer in full.layers())
    numbers: dict[str, int] = {}
    for part in text.split(","):
        stack, _, number = (piece.strip() for piece in part.partition("="))
        if stack in numbers or not number.isdecimal() or int(number) < 1:
            raise UsageError(
                f"--drop-layers {text}: write each as STACK=NUMBER once, as in --drop-layers "
                f"{max(layers)}=1 (only --speedup can search)",
                id="drop-layers-invalid",
            )
        if stack not in layers:
            raise UsageError(
                f"--drop-layers {text}: there is no {stack!r}; there are {', '.join(layers)}"
                + did_you_mean(stack, layers),
                id="kind-unknown",
            )
        if int(number) >= layers[stack]:
            raise UsageError(
                f"--drop-layers {text}: the {stack} has {layers[stack]} layers and keeps at least "
                "one; drop fewer",
                id="drop-layers-invalid",
            )
        numbers[stack] = int(number)
    return numbers


def _parts(text: str, full: Mask, option: str) -> dict[str, str]:
    """Pool -> amount; a text without a pool is of heads."""
    if "=" not in text:
        return {HEADS: text.strip()}
    pools = [HEADS, NEURONS, *full.kinds()]
    parts: dict[str, str] = {}
    for part in text.split(","):
        pool, equals, amount = (piece.strip() for piece in part.partition("="))
        if not equals or pool in parts:
            raise UsageError(
                f"{option} {text}: write each as POOL=AMOUNT once, as in "
                f"{option} heads=0.7,neurons=0.5 or {option} encoder_self=0.3,cross=0.8",
                id="budget-invalid",
            )
        if pool not in pools:
            known = "the model has no" if pool in KINDS else "there is no"
            raise UsageError(
                f"{option} {text}: {known} {pool!r}; there are {', '.join(pools)}"
                + did_you_mean(pool, pools),
                id="kind-unknown",
            )
        parts[pool] = amount
    return parts


class Group(NamedTuple):
    """Units that are removed together: of one sublayer, or of those that keep equally many."""

    score: float  # the mean of theirs
    units: tuple[tuple[str, int], ...]  # sublayer and number of each


def removal_groups(
    scores: Scores, mask: Mask, floors: Floors, multiples: Multiples, even: bool = False
) -> list[list[Group]]:
    """What can go from each sublayer that has scores, in the order in which it goes.

    The units of a sublayer go in ascending order of their scores. The first group is as large as
    leaves a multiple; a sublayer stops at its floor. With `even`, attentions of a stack keep as
    many heads, so one of each goes at a time; those with more lose them first, those without any
    are left out.
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
    """Sublayers that lose units at the same time."""
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

    Where units go in groups, as few are left as groups allow without falling below that.
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
