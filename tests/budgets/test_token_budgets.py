"""What `--macs` and `--speedup` choose where tokens go with heads and neurons."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from compressor.budgets.base import Limits
from compressor.budgets.cost_table import (
    choose,
    layer_weights,
    saved_share,
    savings,
    tenths_to_measure,
)
from compressor.budgets.counts import Macs
from compressor.budgets.speedup import Speedup
from compressor.budgets.units import parse_floors
from compressor.errors import UsageError
from compressor.model.sublayers import TOKEN_KIND, Mask, Scores
from compressor.steps.results import Throughput
from tests.helpers.errors import raises
from tests.helpers.scores import cost_table, timing
from tests.helpers.token_units import (
    COSTS,
    DENSE,
    FULL,
    HEADS,
    LAYERS,
    MULTIPLE,
    TOKENS,
    error,
    flat,
    made_up,
    schedules,
    work,
)

WIDTH = {"encoder_self": [0.05, 0.035, 0.02], "encoder_ffn": [0.08, 0.06, 0.04, 0.02]}
# Of each layer that hands on 0, 1, … tenths.
TOKEN_SAVINGS = [0.13, 0.12, 0.105, 0.09, 0.075, 0.065, 0.05, 0.035, 0.025, 0.01]
TABLE = cost_table(
    WIDTH | {TOKEN_KIND: TOKEN_SAVINGS}, {"encoder_self": 4, "encoder_ffn": 4, TOKEN_KIND: 3}
)

EVEN = dict.fromkeys(FULL.keep, 1.0)
SAVED = savings(TABLE, FULL, EVEN)


def predicted(mask: Mask) -> float:
    """Time saved, layer by layer: what is left of the tokens times what units save of all."""
    counts, saved, received = mask.counts(), 0.0, 1.0
    for layer in range(LAYERS):
        saved += received * ([*WIDTH["encoder_self"], 0][counts[f"encoder_self.{layer}"]])
        if layer < LAYERS - 1:
            tenths = counts[TOKENS[layer]]
            saved += [*TOKEN_SAVINGS, 0][tenths]
            received = tenths / 10
        states = 1.0 if layer == LAYERS - 1 else received
        saved += states * [*WIDTH["encoder_ffn"], 0][counts[f"encoder_ffn.{layer}"]]
    return saved


@pytest.mark.parametrize("seed", range(3))
def test_a_speedup_is_reached_at_about_the_least_loss(seed):
    """Against all numbers of units and tokens; tokens are tried along one path alone."""
    rng = np.random.default_rng(seed)
    values = {n: flat(np.sort(rng.exponential(size=c))) for n, c in FULL.totals().items()}
    values |= {n: flat(np.sort(values[n])[::-1]) for n in TOKENS}
    found = Scores(values, "", "", {})
    floors = parse_floors("heads=1,neurons=2,tokens=0.7", FULL)
    limits = Limits(FULL, frozenset({"heads", "neurons", "tokens"}), floors, MULTIPLE)
    widths = []
    for heads in itertools.product(range(HEADS), repeat=LAYERS):
        for halves in itertools.product(range(2), repeat=LAYERS):
            gone = [(f"encoder_self.{i}", x) for i, n in enumerate(heads) for x in range(n)]
            widths.append(
                gone + [(f"encoder_ffn.{i}", x) for i, n in enumerate(halves) for x in range(2 * n)]
            )
    every = [mask.without(gone) for mask in schedules(7) for gone in widths]
    saved, errors = map(
        np.array, zip(*((predicted(x), error(found, x)) for x in every), strict=True)
    )
    for speedup in (1.05, 1.2, 1.4):
        mask = choose(found, limits, SAVED, speedup)
        assert saved_share(mask, SAVED) == pytest.approx(predicted(mask))
        assert 1 / (1 - predicted(mask)) >= speedup
        assert list(mask.handed_on()) == [mask.counts()[name] for name in TOKENS]
        assert error(found, mask) <= 1.1 * errors[saved >= 1 - 1 / speedup].min()
    least = choose(found, limits, SAVED, 100.0)
    assert least.counts() == {n: floors[n.partition(".")[0]] for n in FULL.keep}


def test_tokens_of_dropped_layers_save_nothing_more():
    start = FULL.without_layers(["encoder.3"])
    saved = savings(TABLE, start, EVEN)
    assert saved_share(start, saved) == pytest.approx(0.05 + 0.08)
    less = start.without([("encoder_tokens.2", 9)])  # layer 2 is the last and hands on nothing
    assert saved_share(less, saved) == saved_share(start, saved)


def test_without_tokens_the_choice_is_that_of_heads_and_neurons():
    found, floors = made_up(0, DENSE), parse_floors("0", FULL)
    both = Limits(DENSE, frozenset({"heads", "neurons"}), floors, MULTIPLE)
    dear = replace(found, values={**found.values, **dict.fromkeys(TOKENS, (1000000000.0,) * 10)})
    every = Limits(FULL, both.units | {"tokens"}, floors, MULTIPLE)
    for speedup in (1.1, 1.5):
        alone = choose(found, both, savings(TABLE, DENSE, EVEN), speedup)
        assert choose(dear, every, SAVED, speedup).counts() == alone.counts() | dict.fromkeys(
            TOKENS, 10
        )


class Scorer:
    """Makes up other scores each time, of all units or of tokens alone; those of tokens are low."""

    def __init__(self, names=tuple(FULL.keep)) -> None:
        self.names = names
        self.masks: list[Mask] = []

    def scores(self, start: Mask) -> Scores:
        self.masks.append(start)
        found = made_up(len(self.masks))
        scale = {name: 0.1 if name in TOKENS else 1.0 for name in self.names}
        values = {n: flat(x * np.array(found.values[n])) for n, x in scale.items()}
        return replace(found, values=values)

    rescored = scores


class Timer:
    """Takes as long as `COSTS` says, but for a tenth of the time, which nothing saves."""

    def __init__(self) -> None:
        self.timed: list[tuple[list[str], str]] = []

    def time(self, masks, batch: int, what: str, *, all_tokens: bool = False) -> Throughput:
        self.timed.append((list(masks), what))
        works = {name: work(mask.with_tokens()) for name, mask in masks.items()}
        times = {name: 0.1 + 0.9 * left / work(FULL) for name, left in works.items()}
        rows = [timing(1.0, "dense"), *(timing(1 / x, name) for name, x in times.items())]
        return Throughput(
            provider="none", device="cpu", precision="fp32", threads=1, lengths="", rows=rows
        )


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("prune", ["tokens", "all"])
def test_macs_take_tokens_down_to_the_share(prune, steps):
    names = TOKENS if prune == "tokens" else tuple(FULL.keep)
    budget, scorer = Macs(macs=[0.55], prune=prune, multiple="2", steps=steps), Scorer(names)
    mask = budget.choose(budget.limits(DENSE), COSTS, scorer).mask
    assert scorer.masks[0] == FULL
    assert len(scorer.masks) == steps
    assert 0.45 < 1 - (work(FULL) - work(mask)) / COSTS.dense <= 0.55
    assert mask.handed_on() == tuple(mask.counts()[name] for name in TOKENS)
    assert mask.handed_on()[-1] < 10
    assert (mask.count("heads") < LAYERS * HEADS) == (prune == "all")
    bounded = Macs(macs=[0.55], prune=prune, floor="heads=3,neurons=4,tokens=0.7")
    with raises(UsageError, "macs-unreachable"):
        bounded.require_enough_may_go(bounded.limits(DENSE), COSTS)


def test_a_speedup_times_tokens_beside_heads_and_neurons():
    budget, timer = Speedup(speedup=2, prune="all", multiple="2", floor="tokens=0.3"), Timer()
    choice = budget.choose(
        budget.limits(DENSE), COSTS, Scorer(), timer, None, None, lambda text: None
    )
    names = [f"encoder_tokens={tenths}" for tenths in (3, 4, 6, 8)]
    wanted = names, "layers that hand on 3, 4, 6, 8 tenths of the tokens"
    assert wanted in timer.timed
    rows = {row.units: row for row in choice.search.costs.rows if row.kind == TOKEN_KIND}
    for tenths, row in rows.items():
        even = FULL.without((name, x) for name in TOKENS for x in range(tenths, 10))
        assert row.layers == len(TOKENS)
        assert row.saved_share * 3 == pytest.approx(0.9 * (1 - work(even) / work(FULL)))
    assert choice.search.tries[-1].met
    assert 0.1 + 0.9 * work(choice.mask) / work(FULL) <= 1 / 2
    assert 3 <= choice.mask.handed_on()[-1] < 10


def test_units_of_a_last_layer_of_one_token_save_what_it_computes():
    """Without tokens, all that goes adds up: what the table predicts is what is timed."""
    budget = Speedup(speedup=1.6, prune="both", multiple="1")
    limits = budget.limits(DENSE)
    choice = budget.choose(limits, COSTS, Scorer(), Timer(), None, None, lambda text: None)
    (tried,) = choice.search.tries
    assert tried.predicted == pytest.approx(tried.speedup, rel=1e-9)
    assert 1.6 <= tried.speedup < 1.7
    last, counts = f".{LAYERS - 1}", choice.mask.counts()
    assert any(counts[n] < DENSE.totals()[n] for n in counts if not n.endswith(last))
    # Without the last layer, the one before it computes one token.
    weights = layer_weights(COSTS, limits)
    dropped = layer_weights(COSTS, limits.without_layers([f"encoder{last}"]))
    for kind in WIDTH:
        by_layer = [weights[f"{kind}.{layer}"] for layer in range(LAYERS)]
        assert by_layer[0] == by_layer[-2] > 1 > by_layer[-1]
        assert sum(by_layer) == pytest.approx(LAYERS)
        assert dropped[f"{kind}.{LAYERS - 2}"] == by_layer[-1]
        assert dropped[f"{kind}{last}"] == by_layer[0]


def test_tokens_are_timed_at_a_few_levels():
    assert tenths_to_measure(1) == [1, 2, 4, 6, 8]
    assert tenths_to_measure(5) == [5, 6, 8]
    assert tenths_to_measure(10) == []
