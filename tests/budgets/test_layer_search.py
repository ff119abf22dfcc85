"""How many layers are dropped: the climb over numbers of layers, with made-up divergences."""

from __future__ import annotations

from collections import Counter

import pytest

from compressor.budgets.speedup import climb
from compressor.results import LayersTry

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
            {(0, 0): 0.1, (1, 0): 0.1, (0, 1): 0.2}, (3, 3), [(0, 0), (1, 0), (0, 1)],
            id="all layers are best",
        ),
        pytest.param(
            MISSED | {(2, 1): 1.0}, (3, 3),
            [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (2, 1), (1, 2)],
            id="the speed is missed with more",
        ),
        pytest.param({(0, 0): 3.0, (0, 1): 2.0}, (1, 2), [(0, 0), (0, 1)], id="one layer stays"),
        pytest.param({(0, 0): 3.0}, (1, 1), [(0, 0)], id="nothing to drop"),
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
