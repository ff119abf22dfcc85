"""The path of masks over heads and neurons of --macs, and the climb over numbers of layers."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from compressor.budgets.speedup import climb
from compressor.budgets.units import UnitCosts, parse_floors, removal_path
from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Scores
from compressor.results import LayersTry
from tests.helpers.errors import raises

TOTALS = {"encoder_self.0": 2, "encoder_self.1": 2, "encoder_ffn.0": 6, "encoder_ffn.1": 6}
FULL = Mask({name: (True,) * count for name, count in TOTALS.items()})
COSTS = UnitCosts(dense=100.0, units={"encoder_self": 10.0, "encoder_ffn": 3.0})
NO_FLOOR = parse_floors("0", FULL)
PAIRS = {"heads": 1, "neurons": 2}


def scores(seed: int = 0) -> Scores:
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
    found = scores(seed)
    path = removal_path(found, FULL, NO_FLOOR, COSTS, PAIRS, even)
    order = {name: np.argsort(values) for name, values in found.values.items()}
    removable = {n: range(0, c + 1, 2 if "ffn" in n else 1) for n, c in TOTALS.items()}
    everything = [
        FULL.without(
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


def test_masks_lie_within_one_another_and_end_with_nothing():
    path = removal_path(scores(), FULL, NO_FLOOR, COSTS, PAIRS)
    kept = [{(n, u) for n in TOTALS for u in path.mask(i).kept(n)} for i in range(len(path))]
    assert all(after < before for before, after in itertools.pairwise(kept))
    assert kept[-1] == set()
    assert path.shares[-1] == pytest.approx(1 - 0.76)


def test_a_share_that_cannot_be_reached_says_the_least_there_is():
    floors = parse_floors("encoder_self=1,neurons=2", FULL)
    path = removal_path(scores(), FULL, floors, COSTS, PAIRS)
    with raises(UsageError, "macs-unreachable") as caught:
        path.position_at(0.3)
    assert "0.560" in str(caught.value)  # 1 - (2 x 10 + 2 x 4 x 3) / 100


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
