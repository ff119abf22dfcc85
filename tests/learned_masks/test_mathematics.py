"""The mathematics of learned masks against sampling, NumPy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compressor.learned_masks import hard_concrete_gates as hard_concrete
from compressor.learned_masks.base import GateLayout, UnitGroup, distance_from_hard
from compressor.learned_masks.hard_concrete_gates import HardConcreteGates
from compressor.learned_masks.subset_gates import SubsetGates, relaxed_subset, rounds
from compressor.model.layers import find_sublayers
from tests.helpers.tiny import tiny_model

LOG_ALPHAS = [-4.0, -1.0, 0.0, 0.7, 3.0]


@pytest.mark.parametrize("log_alpha", LOG_ALPHAS)
def test_open_probability_and_mean_of_hard_concrete_against_sampling(log_alpha: float):
    """100,000 gates drawn by the formula in NumPy; the tolerance is five standard errors."""
    u = np.random.default_rng(0).uniform(size=100_000)
    s = 1 / (1 + np.exp(-(np.log(u) - np.log(1 - u) + log_alpha) / 0.33))
    drawn = np.clip(s * 1.2 - 0.1, 0, 1)
    value, error = torch.tensor(log_alpha), 5 * 0.5 / len(u) ** 0.5
    gates = hard_concrete.sample(value, torch.from_numpy(u))
    np.testing.assert_allclose(gates, drawn, rtol=1e-5, atol=1e-5)
    assert float(hard_concrete.open_probability(value)) == pytest.approx(
        (drawn != 0).mean(), abs=error
    )
    assert float(hard_concrete.expected_gate(value)) == pytest.approx(drawn.mean(), abs=error)


@pytest.mark.slow
def test_with_a_penalty_a_gate_is_what_it_is_more_probably():
    """At log alpha -0.6 a gate is not 0 in 55 % of the draws, but 1 in 20 % only."""
    layers = find_sublayers(tiny_model("bert"))[:3]
    gates = HardConcreteGates(GateLayout(layers, None, {"encoder_self": 0}), "cpu", 0.1, None)
    with torch.no_grad():
        gates.values.copy_(torch.tensor([-0.6, 0.1, -0.1, 2.0] * 3))
    assert [gates.mask().kept(layer.name) for layer in layers] == [[1, 3]] * 3


@pytest.mark.parametrize("temperature", [1000.0, 3.0, 1.0, 0.3])
@pytest.mark.parametrize("keep", [0, 1, 4, 9, 10])
def test_relaxed_subset_is_its_definition(keep: int, temperature: float):
    """The iterated softmax, literally, in float64."""
    scores = r = np.random.default_rng(keep).gumbel(size=10)
    expected = np.zeros_like(r)
    for _ in range(keep):
        p = np.exp(r / temperature - (r / temperature).max())
        p /= p.sum()
        expected += p
        r = r + np.log(np.maximum(1 - p, np.finfo(np.float32).tiny))
    plan = rounds([], [UnitGroup(tuple(range(10)), keep)], 10)
    gates = relaxed_subset(torch.tensor(scores, dtype=torch.float32), plan, temperature)
    np.testing.assert_allclose(gates, expected, atol=3e-6, rtol=1e-5)


def test_a_subset_takes_floors_first_and_each_pool_by_itself():
    """Cold: the best of each layer, then the best of the pool; by hand."""
    scores = torch.tensor([5.0, 4.0, -1.0, -2.0, 3.0, 2.0, 1.0])
    layers = [UnitGroup((0, 1), 1), UnitGroup((2, 3), 1), UnitGroup((4, 5, 6), 0)]
    plan = rounds(layers, [UnitGroup((0, 1, 2, 3), 3), UnitGroup((4, 5, 6), 2)], 7)
    for cold in (1e-3, 1e-6):
        assert relaxed_subset(scores, plan, cold).tolist() == [1, 1, 1, 0, 1, 1, 0]
    warm = relaxed_subset(scores, plan, 1.0)
    assert float(warm[:4].sum()) == pytest.approx(3, abs=1e-5)
    assert float(warm[4:].sum()) == pytest.approx(2, abs=1e-5)
    assert float(warm[2:4].sum()) > 1  # the layer's own round, and a share of the pool's


def test_subset_gradients_against_finite_differences():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(6, dtype=torch.float64, generator=generator, requires_grad=True)
    plan = rounds([UnitGroup((0, 1, 2), 1)], [UnitGroup(tuple(range(6)), 3)], 6)
    assert torch.autograd.gradcheck(lambda s: relaxed_subset(s, plan, 0.5), scores)


@pytest.mark.slow
@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_subset_gates_sum_to_the_count_and_harden(progress: float):
    """With `straight-through` they are hard at once, with the gradient of relaxed ones."""
    layers = find_sublayers(tiny_model("marian"))[:8]
    floors = {"encoder_self": 1, "decoder_self": 1, "cross": 1}
    layout = GateLayout(layers, {"encoder_self": 3, "cross": 5}, floors)
    factors, gradients = torch.randn(20, generator=torch.Generator().manual_seed(1)), []
    for estimator in ("gumbel", "straight-through"):
        gates = SubsetGates(layout, "cpu", estimator, None)
        with torch.no_grad():
            gates.values.normal_(generator=torch.Generator().manual_seed(0))
        torch.manual_seed(2)
        drawn = gates.draw(progress)
        assert drawn[:8].sum().item() == pytest.approx(3, abs=1e-4)
        assert drawn[8:].sum().item() == pytest.approx(5, abs=1e-4)
        is_hard = bool(((drawn == 0) | (drawn == 1)).all())
        assert is_hard if estimator == "straight-through" else not is_hard or progress > 0
        (drawn * factors).sum().backward()
        gradients.append(gates.values.grad)
        soft, hard = (distance_from_hard(gates.without_noise(x))[1] for x in (0.0, 1.0))
        assert hard < soft / 10
    assert torch.equal(*gradients)
