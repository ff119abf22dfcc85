"""Units of a model: amounts of them as text, what may go, and from scores to a mask.

An amount is written `0.5` (a fraction) or `36` (a count) of heads, or per pool:
`heads=0.7,neurons=0.5`. A pool is all heads, all neurons, all tokens, or one kind of sublayer.
Of tokens it is always a fraction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from compressor.budgets.token_order import TokenOrder
from compressor.budgets.unit_costs import Unit, token_sublayers
from compressor.errors import UsageError, did_you_mean
from compressor.model.sublayers import (
    TOKEN_KIND,
    TOKEN_UNITS,
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
TOKENS: Units = "tokens"
Floors = Mapping[str, int]  # kind -> least number of units in each of its sublayers
LEAST_TOKENS = 1  # a tenth, rounded up: at least the token that is read
# Heads, neurons -> a number: each sublayer keeps a multiple of it, or all that it has. Tokens go by
# single tenths.
Multiples = Mapping[str, int]
MULTIPLES: Multiples = {HEADS: 1, NEURONS: 32}  # 32 neurons suit vector units


def parse_amount(mode: Literal["keep", "remove"], text: str, full: Mask) -> dict[str, int]:
    """Read `--keep` or `--remove`: the units to keep per pool; other pools keep all of theirs."""
    pools = _pools(full)
    totals = {pool: full.total(pool) for pool in pools}
    option, keep = f"--{mode}", dict[str, int]()
    for pool, amount in _parts(option, text, totals, HEADS).items():
        total, units = totals[pool], units_of(pool)
        share = _fraction(amount)
        if amount.isdecimal() and units != TOKENS:
            count = int(amount)
        else:
            count = -1 if share is None else int(share * total + 0.5)  # the nearest unit
        if not 0 <= count <= total:
            known = f"neither a fraction (0.5, 50%) nor a number of {units} up to {total:,}"
            if units == TOKENS:
                known = "no fraction of the tokens (0.5, 50%)"
            raise _invalid(option, text, f"{amount!r} is {known}")
        keep[pool] = count if mode == "keep" else total - count
    for pool in keep:
        if pool in UNITS_OF and UNITS_OF[pool] in keep:
            problem = f"{pool} is among the {UNITS_OF[pool]} already; give either"
            raise _invalid(option, text, problem)
    return keep


def _pools(full: Mask) -> list[str]:
    """What amounts can be of: heads, neurons, and tokens where they are units; kinds of these."""
    kinds = full.kinds()
    return [HEADS, NEURONS, *([TOKENS] if TOKEN_KIND in kinds else []), *kinds]


def _fraction(amount: str) -> float | None:
    """`0.5` or `50%` as a number from 0 to 1; None for anything else."""
    try:
        share = float(amount.rstrip("%")) / (100 if amount.endswith("%") else 1)
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None


def names_tokens(text: str) -> bool:
    """Whether an amount or a floor is about tokens."""
    names = {part.partition("=")[0].strip() for part in text.split(",") if "=" in part}
    return not names.isdisjoint({TOKENS, TOKEN_KIND})


def parse_multiples(text: str) -> dict[str, int]:
    """Read `--multiple`: `64` of neurons, or `heads=2,neurons=64`."""
    if names_tokens(text):
        raise _invalid("--multiple", text, "tokens go by single tenths; leave them out")
    return {**MULTIPLES, **_numbers("--multiple", text, [HEADS, NEURONS], NEURONS, least=1)}


def parse_floors(text: str, full: Mask) -> dict[str, int]:
    """Read `--floor`: `1` (of heads), or per pool `cross=2,neurons=64,tokens=0.2`.

    Kinds that are not named get 1 head, no neuron, or a tenth of the tokens. What is said of a kind
    counts more than what is said of all heads, neurons or tokens, wherever it stands.
    """
    least = {HEADS: 1, NEURONS: 0, TOKENS: LEAST_TOKENS}
    floors = {kind: least[units_of(kind)] for kind in full.kinds()}
    parts = _parts("--floor", text, _pools(full), HEADS).items()
    for pool, amount in sorted(parts, key=lambda part: part[0] in UNITS_OF):  # kinds last
        if units_of(pool) == TOKENS:
            share = _fraction(amount) or 0.0
            number = math.ceil(share * TOKEN_UNITS - 1e-9)  # 0.7 x 10 is more than 7
            if not number:
                known = f"{amount!r} is no fraction of the tokens above 0 (0.2, 20%)"
                raise _invalid("--floor", text, known)
        else:
            number = _whole_number("--floor", text, amount)
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
    return {name: _whole_number(option, text, amount, least) for name, amount in parts.items()}


def _whole_number(option: str, text: str, amount: str, least: int = 0) -> int:
    if not amount.isdecimal() or int(amount) < least:
        raise _invalid(option, text, f"{amount!r} is no whole number from {least}; give one")
    return int(amount)


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
    units: tuple[Unit, ...]  # sublayer and number of each


def removal_groups(
    scores: Scores, mask: Mask, floors: Floors, multiples: Multiples, even: bool = False
) -> list[list[Group]]:
    """What can go from each sublayer that has scores, in ascending order, down to its floor.

    With `even`, attentions of a stack keep as many heads, so one of each goes at a time; those with
    more lose them first, those without any are left out. Tokens go from the last tenth on, whatever
    they score; those that the last layer that is left would hand on are nothing to go.
    """
    handed_on = token_sublayers(mask)
    scored = [name for name in scores.values if kind_of(name) != TOKEN_KIND or name in handed_on]
    per_sublayer = []
    for names in lose_together(scored, even):
        of_tokens = kind_of(names[0]) == TOKEN_KIND
        kept = {
            name: mask.kept(name)[::-1]
            if of_tokens
            else sorted(mask.kept(name), key=lambda unit: (scores.values[name][unit], unit))
            for name in names
        }
        size = 1 if of_tokens else multiples[units_of(names[0])]
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

    Of units in groups as few are left as groups allow without falling below that. Tokens go by the
    mean score of what must go together (`TokenOrder`).
    """
    excess = {pool: mask.count(pool) - wanted for pool, wanted in keep.items()}
    ascending = sorted(
        (group.score, position, number, group)
        for position, groups in enumerate(removal_groups(scores, mask, floors, multiples))
        for number, group in enumerate(groups)
        if kind_of(group.units[0][0]) != TOKEN_KIND
    )
    of_tokens = excess.get(TOKEN_KIND, excess.get(TOKENS, 0))
    removed = _tokens_to_go(scores, mask, floors, of_tokens) if of_tokens > 0 else []
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


def _tokens_to_go(scores: Scores, mask: Mask, floors: Floors, count: int) -> list[Unit]:
    """So many tenths of tokens, or fewer where the floors keep them."""
    order = TokenOrder(scores, mask, floors[TOKEN_KIND])
    per_tenth = [range(TOKEN_UNITS + 1)] * len(order.names)  # each costs as much
    gone: list[Unit] = []
    while len(gone) < count and (found := order.next(per_tenth)):
        _, units = found
        gone += units
        order.remove(units)
    return gone[:count]


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
