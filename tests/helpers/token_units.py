"""A made-up encoder whose tokens are units, and what its units cost."""

from __future__ import annotations

import itertools

import numpy as np

from compressor.budgets.unit_costs import TokenCosts, UnitCosts
from compressor.model.sublayers import TOKEN_UNITS, Mask, Scores

LAYERS, HEADS, NEURONS = 4, 3, 4
DENSE = Mask(
    {f"encoder_self.{i}": (True,) * HEADS for i in range(LAYERS)}
    | {f"encoder_ffn.{i}": (True,) * NEURONS for i in range(LAYERS)}
)
FULL = DENSE.with_tokens()
TOKENS = [f"encoder_tokens.{i}" for i in range(LAYERS - 1)]
MULTIPLE = {"heads": 1, "neurons": 2, "tokens": 1}
TENTHS = np.arange(TOKEN_UNITS + 1)


def flat(values) -> tuple[float, ...]:
    return tuple(map(float, values))


# Made up: attention has a part that grows with the square of the tokens.
COSTS = UnitCosts(
    dense=2000.0,
    units={"encoder_self": 120.0, "encoder_ffn": 40.0},
    units_of_one_token={"encoder_self": 60.0, "encoder_ffn": 1.0},
    by_tokens={
        "encoder_self": TokenCosts(
            flat(5 * TENTHS + 0.4 * TENTHS**2), flat(3 * TENTHS), flat(10 + 5 * TENTHS)
        ),
        "encoder_ffn": TokenCosts(flat(0 * TENTHS), flat(4 * TENTHS), flat(1 + 0 * TENTHS)),
    },
)


def made_up(seed: int, full: Mask = FULL) -> Scores:
    rng = np.random.default_rng(seed)
    values = {n: flat(rng.exponential(size=count)) for n, count in full.totals().items()}
    return Scores(values, "second-order", "", {"seconds": 0.0})


def error(found: Scores, mask: Mask) -> float:
    return sum(
        value
        for name, values in found.values.items()
        for value, keep in zip(values, mask.keep[name], strict=True)
        if not keep
    )


def work(mask: Mask) -> float:
    """What `COSTS` says, layer by layer."""
    total, received = 0.0, TOKEN_UNITS
    for layer in range(LAYERS):
        heads = mask.counts()[f"encoder_self.{layer}"]
        neurons = mask.counts()[f"encoder_ffn.{layer}"]
        if layer == LAYERS - 1:
            return total + heads * (10 + 5 * received) + neurons
        left = min(received, mask.counts()[TOKENS[layer]])
        total += heads * (5 * received + 0.4 * received**2 + 3 * left) + neurons * 4 * left
        received = left
    raise AssertionError


def schedules(floor: int) -> list[Mask]:
    """Every mask with fewer tokens, none of whose layers hands on more than it gets."""
    levels = range(floor, TOKEN_UNITS + 1)
    return [
        FULL.without((n, x) for n, t in zip(TOKENS, left, strict=True) for x in range(t, 10))
        for left in itertools.product(levels, repeat=len(TOKENS))
        if list(left) == sorted(left, reverse=True)
    ]
