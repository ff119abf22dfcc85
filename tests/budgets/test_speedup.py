"""`--speedup`: cost table, choice against brute force, climb; and the path of --macs."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from compressor.budgets.base import Limits
from compressor.budgets.cost_table import (
    choose,
    layer_costs,
    saved_share,
    savings,
    trial_mask,
)
from compressor.budgets.removal_path import removal_path
from compressor.budgets.speedup import climb
from compressor.budgets.unit_costs import UnitCosts
from compressor.budgets.units import MULTIPLES, parse_floors
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores
from compressor.steps.results import CostTable, LayerCost, LayersTry
from tests.helpers.errors import raises
from tests.helpers.scores import cost_table, timing

HEADS = {"encoder_self.0": 4, "encoder_self.1": 4, "decoder_self.0": 4, "cross.0": 4}
FULL = Mask({name: (True,) * count for name, count in HEADS.items()})
LIMITS = Limits(FULL, frozenset({"heads"}), parse_floors("0", FULL), MULTIPLES)


def scores(seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    values = {name: tuple(rng.exponential(size=count).tolist()) for name, count in HEADS.items()}
    return Scores(values, "random", "random", {"seconds": 0.0})


LAYERS = {"encoder_self": 2, "decoder_self": 1, "cross": 1}
COSTS = cost_table(
    {
        "encoder_self": [0.11, 0.07, 0.04, 0.01],
        "decoder_self": [0.19, 0.12, 0.10, 0.05],
        "cross": [0.15, 0.13, 0.06, 0.03],
    },
    LAYERS,
)
SAVED = savings(COSTS, FULL, dict.fromkeys(FULL.keep, 1.0))


def test_costs_are_monotone_and_follow_the_timings():
    """Least squares without falling: neighbors in the wrong order get their mean."""
    speedups = {6: 0.98, 4: 1.10, 2: 1.06, 1: 1.25, 0: 1.20}
    rows = layer_costs(
        "cross", dict.fromkeys(speedups, 3), {n: timing(s) for n, s in speedups.items()}
    )
    assert [row.units for row in rows] == [6, 4, 2, 1, 0]
    assert {row.units: row.speedup for row in rows} == speedups
    two = (1 - 1 / 1.10 + 1 - 1 / 1.06) / 2
    last = (1 - 1 / 1.25 + 1 - 1 / 1.20) / 2
    expected = np.array([0, two, two, last, last]) / 3
    np.testing.assert_allclose([row.saved_share for row in rows], expected, rtol=1e-12)
    assert rows[0].saved_share == 0  # slower with fewer heads can only be noise


def test_one_cross_attention_stays_where_the_encoder_would_not_run_without():
    full = Mask(
        {f"{kind}.{i}": (True,) * 4 for kind in ("decoder_self", "cross") for i in range(3)}
    )
    assert trial_mask(full, ["cross"], 2).counts() == full.counts() | {
        "cross.0": 2, "cross.1": 2, "cross.2": 2,
    }  # fmt: skip
    both = {"decoder_self.0": 0, "decoder_self.1": 0, "decoder_self.2": 0}
    assert trial_mask(full, ["decoder_self", "cross"], 0).counts() == full.counts() | both | {
        "cross.1": 0, "cross.2": 0,
    }  # fmt: skip
    rows = layer_costs("cross", {2: 3, 0: 2}, {2: timing(1.2), 0: timing(1.6)})
    assert [row.layers for row in rows] == [3, 2]
    expected = [(1 - 1 / 1.2) / 3, (1 - 1 / 1.6) / 2]
    np.testing.assert_allclose([row.saved_share for row in rows], expected, rtol=1e-12)
    alone = Mask({"cross.0": (True,) * 4})
    assert trial_mask(alone, ["cross"], 0).counts() == {"cross.0": 0}


def test_savings_are_linear_between_the_rows():
    full = Mask({"cross.0": (True,) * 8})
    rows = [
        LayerCost(
            kind="cross", units=n, layers=1, speedup=1.1, speedup_interval=(1, 2), saved_share=share
        )
        for n, share in ((1, 0.3), (4, 0.24), (6, 0.1))
    ]
    table = CostTable(batch_size=1, dense_seconds=1, lengths="", rows=rows)
    found = savings(table, full, {"cross.0": 1.0})
    expected = [0.3, 0.3, 0.28, 0.26, 0.24, 0.17, 0.1, 0.05, 0.0]
    np.testing.assert_allclose(found["cross.0"], expected, atol=1e-15)


def brute_force(losses, gains, wanted: float) -> float:
    """The least loss over all combinations of options."""
    best = np.inf
    for options in itertools.product(*(range(len(loss)) for loss in losses)):
        gain = sum(g[o] for g, o in zip(gains, options, strict=True))
        if gain >= wanted - 1e-12:
            best = min(best, sum(x[o] for x, o in zip(losses, options, strict=True)))
    return best


STACKS = [["encoder_self.0", "encoder_self.1"], ["decoder_self.0", "cross.0"]]


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_choice_reaches_the_speedup_at_least_loss(seed, even):
    """Against all combinations of head counts, with arbitrary speed-ups wanted."""
    found = scores(seed)
    wanted = 1 + np.random.default_rng(seed).uniform(0.02, 1.0)
    saved = SAVED
    together = STACKS if even else [[name] for name in HEADS]
    losses = [
        sum(np.concatenate([[0], np.cumsum(np.sort(found.values[name]))]) for name in names)
        for names in together
    ]  # by heads removed of each
    gains = [sum(saved[name][::-1] for name in names) for names in together]
    mask = choose(found, replace(LIMITS, even=even), SAVED, wanted)
    counts = mask.counts()
    assert all(len({counts[name] for name in names}) == 1 for names in together)
    assert saved_share(mask, saved) >= 1 - 1 / wanted
    removed = sum(
        score
        for name in HEADS
        for score, keep in zip(found.values[name], mask.keep[name], strict=True)
        if not keep
    )
    saving = 1 - 1 / wanted
    assert removed >= brute_force(losses, gains, saving) - 1e-9
    # Rounding can cost at most one step of time per layer.
    assert removed <= brute_force(losses, gains, saving * (1 + len(HEADS) / 20_000)) + 1e-9


def test_floors_hold_and_what_they_forbid_is_not_reachable():
    limits = replace(LIMITS, floors=parse_floors("cross=2,decoder_self=4", FULL))
    most = 1 / (1 - 2 * 0.07 - 0.06)
    for wanted in (most + 1e-6, most - 1e-9):
        mask = choose(scores(), limits, SAVED, wanted)
        assert mask.counts() == {
            "encoder_self.0": 1, "encoder_self.1": 1, "decoder_self.0": 4, "cross.0": 2,
        }  # fmt: skip
        assert saved_share(mask, SAVED) == pytest.approx(1 - 1 / most)


def test_a_floor_of_a_kind_counts_more_than_one_of_all_heads():
    """In whichever order they are given."""
    for text in ("heads=1,cross=2", "cross=2,heads=1"):
        floors = parse_floors(text, FULL)
        assert (floors["cross"], floors["encoder_self"], floors["decoder_self"]) == (2, 1, 1)


TOTALS = {"encoder_self.0": 2, "encoder_self.1": 2, "encoder_ffn.0": 6, "encoder_ffn.1": 6}
PATH_FULL = Mask({name: (True,) * count for name, count in TOTALS.items()})
UNIT_COSTS = UnitCosts(dense=100.0, units={"encoder_self": 10.0, "encoder_ffn": 3.0})
NO_FLOOR = parse_floors("0", PATH_FULL)
PAIRS = {"heads": 1, "neurons": 2}


def path_scores(seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    values = {name: tuple(rng.exponential(size=n).tolist()) for name, n in TOTALS.items()}
    return Scores(values, "second-order", "", {"seconds": 0.0})


def error(found: Scores, mask: Mask) -> float:
    """Summed score of what a mask removes."""
    return sum(
        value
        for name, values in found.values.items()
        for value, keep in zip(values, mask.keep[name], strict=True)
        if not keep
    )


def share(mask: Mask) -> float:
    heads, neurons = (4 - mask.count("heads")), (12 - mask.count("neurons"))
    return 1 - (10 * heads + 3 * neurons) / 100


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_mask_of_the_path_has_the_least_error_of_all_that_cost_no_more(seed, even):
    """Against all combinations of counts, each sublayer losing its least important units first."""
    found = path_scores(seed)
    path = removal_path(found, PATH_FULL, NO_FLOOR, UNIT_COSTS, PAIRS, even)
    order = {name: np.argsort(values) for name, values in found.values.items()}
    removable = {n: range(0, c + 1, 2 if "ffn" in n else 1) for n, c in TOTALS.items()}
    everything = [
        PATH_FULL.without(
            (name, int(unit))
            for name, k in zip(TOTALS, ks, strict=True)
            for unit in order[name][:k]
        )
        for ks in itertools.product(*removable.values())
        if not even or ks[0] == ks[1]
    ]
    for position in range(len(path)):
        mask = path.mask(position)
        assert mask in everything
        assert path.shares[position] == pytest.approx(share(mask))
        same_or_less = [other for other in everything if share(other) <= share(mask) + 1e-9]
        assert error(found, mask) == pytest.approx(min(error(found, m) for m in same_or_less))


def test_a_share_that_cannot_be_reached_says_the_least_there_is():
    floors = parse_floors("encoder_self=1,neurons=2", PATH_FULL)
    path = removal_path(path_scores(), PATH_FULL, floors, UNIT_COSTS, PAIRS)
    with raises(UsageError, "macs-unreachable") as caught:
        path.position_at(0.3)
    assert "the minimum is 0.560" in str(caught.value)  # 1 - (2 x 10 + 2 x 4 x 3) / 100
    odd = replace(UNIT_COSTS, dense=UNIT_COSTS.dense * 7 / 3)
    path = removal_path(path_scores(), PATH_FULL, floors, odd, PAIRS)
    with raises(UsageError, "macs-unreachable") as caught:
        path.position_at(0.3)
    least = re.search(r"the minimum is ([\d.]+);", str(caught.value))
    assert least is not None
    assert path.position_at(float(least[1])) == len(path) - 1  # what is told can be asked for


MISSED = {(0, 0): None, (1, 0): None, (0, 1): None, (2, 0): 0.9, (1, 1): 0.7, (1, 2): 0.8}


@pytest.mark.parametrize(
    ("costs", "layers", "tries"),
    [
        pytest.param(
            {(0, 0): 0.5, (1, 0): 0.6, (0, 1): 0.3, (1, 1): 0.4, (0, 2): 0.2, (1, 2): 0.25},
            (3, 3), [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)],
            id="while the divergence falls",
        ),
        pytest.param(
            MISSED | {(2, 1): 1.0}, (3, 3),
            [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (2, 1), (1, 2)],
            id="the speed is missed with more",
        ),
        pytest.param({(0, 0): 3.0, (0, 1): 2.0}, (1, 2), [(0, 0), (0, 1)], id="one layer stays"),
    ],
)  # fmt: skip
def test_layers_go_while_the_divergence_falls(costs, layers, tries):
    """By (encoder layers, decoder layers) dropped; divergence None: the speed is not reached."""

    def numbers(names) -> tuple[int, int]:
        counts = Counter(name.partition(".")[0] for name in names)
        return counts["encoder"], counts["decoder"]

    def attempt(dropped, stack):
        names = [*dropped, *([f"{stack}.{len(dropped)}"] if stack else [])]
        divergence = costs[numbers(names)]
        return LayersTry(layers=names, speedup=1 + 0.1 * len(names), divergence=divergence)

    result = climb(dict(zip(("encoder", "decoder"), layers, strict=True)), attempt)
    assert [numbers(one.layers) for one in result] == tries
