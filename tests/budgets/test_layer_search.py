"""How many layers are dropped: the climb over numbers of layers, with made-up divergences."""

from __future__ import annotations

from collections import Counter

import pytest

from compressor.budgets.layer_search import climb
from compressor.results import LayersTry


def tried(costs: dict[tuple[int, int], float | None], layers=(3, 3)) -> list[tuple[int, int]]:
    """(encoder layers, decoder layers) gone in each try; None: the speed is not reached."""

    def attempt(gone, stack):
        names = [*gone, *([f"{stack}.{len(gone)}"] if stack else [])]
        return LayersTry(layers=names, speedup=1 + 0.1 * len(names), divergence=costs[place(names)])

    found = climb(dict(zip(("encoder", "decoder"), layers, strict=True)), attempt)
    return [place(one.layers) for one in found]


def place(names) -> tuple[int, int]:
    counts = Counter(name.partition(".")[0] for name in names)
    return counts["encoder"], counts["decoder"]


def test_layers_go_while_the_divergence_falls():
    costs = {(0, 0): 0.5, (1, 0): 0.6, (0, 1): 0.3, (1, 1): 0.4, (0, 2): 0.2, (1, 2): 0.25}
    assert tried(costs) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_nothing_more_is_tried_where_all_layers_are_best():
    assert tried({(0, 0): 0.1, (1, 0): 0.1, (0, 1): 0.2}) == [(0, 0), (1, 0), (0, 1)]


def test_a_speed_that_is_missed_is_tried_with_fewer_layers():
    costs = {(0, 0): None, (1, 0): None, (0, 1): None, (2, 0): 0.9, (1, 1): 0.7, (1, 2): 0.8}
    costs |= {(2, 1): 1.0}
    assert tried(costs) == [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (2, 1), (1, 2)]


@pytest.mark.parametrize("layers", [(1, 1), (1, 2)])
def test_one_layer_of_each_stack_stays(layers):
    found = tried({(0, 0): 3.0, (0, 1): 2.0}, layers)
    assert found == [(0, n) for n in range(layers[1])]
