"""The mathematics of learned masks against sampling, NumPy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compressor.learned_masks import hard_concrete_gates as hard_concrete_distribution
from compressor.learned_masks.base import UnitGroup
from compressor.learned_masks.subset_gates import relaxed_subset, rounds

LOG_ALPHAS = [-4.0, -1.0, 0.0, 0.7, 3.0]


def one_pool(count: int, keep: int) -> list[torch.Tensor]:
    return rounds([], [UnitGroup(tuple(range(count)), keep)], count)


@pytest.mark.parametrize("log_alpha", LOG_ALPHAS)
def test_open_probability_and_mean_of_hard_concrete_against_sampling(log_alpha: float):
    """100,000 gates drawn by the formula in NumPy; the tolerance is five standard errors."""
    u = np.random.default_rng(0).uniform(size=100_000)
    s = 1 / (1 + np.exp(-(np.log(u) - np.log(1 - u) + log_alpha) / 0.33))
    drawn = np.clip(s * 1.2 - 0.1, 0, 1)
    value = torch.tensor(log_alpha)
    np.testing.assert_allclose(
        hard_concrete_distribution.sample(value, torch.from_numpy(u)), drawn, rtol=1e-5, atol=1e-5
    )
    error = 5 * 0.5 / len(u) ** 0.5
    assert float(hard_concrete_distribution.open_probability(value)) == pytest.approx(
        (drawn != 0).mean(), abs=error
    )
    assert float(hard_concrete_distribution.expected_gate(value)) == pytest.approx(
        drawn.mean(), abs=error
    )


def test_expected_l0_has_the_gradient_of_finite_differences():
    log_alpha = torch.tensor(LOG_ALPHAS, dtype=torch.float64, requires_grad=True)
    hard_concrete_distribution.open_probability(log_alpha).sum().backward()
    step = 1e-5
    with torch.no_grad():
        higher = hard_concrete_distribution.open_probability(log_alpha + step)
        lower = hard_concrete_distribution.open_probability(log_alpha - step)
    np.testing.assert_allclose(log_alpha.grad, (higher - lower) / (2 * step), rtol=1e-7)


def definition(r: np.ndarray, keep: int, temperature: float) -> np.ndarray:
    """The iterated softmax, literally, in float64."""
    gates = np.zeros_like(r)
    for _ in range(keep):
        p = np.exp(r / temperature - (r / temperature).max())
        p /= p.sum()
        gates += p
        r = r + np.log(np.maximum(1 - p, np.finfo(np.float32).tiny))
    return gates


@pytest.mark.parametrize("temperature", [1000.0, 3.0, 1.0, 0.3])
@pytest.mark.parametrize("keep", [0, 1, 4, 9, 10])
def test_relaxed_subset_is_its_definition(keep: int, temperature: float):
    r = np.random.default_rng(keep).gumbel(size=10)
    found = relaxed_subset(torch.tensor(r, dtype=torch.float32), one_pool(10, keep), temperature)
    np.testing.assert_allclose(found, definition(r, keep, temperature), atol=3e-6, rtol=1e-5)
    assert float(found.sum()) == pytest.approx(keep, abs=1e-5)


@pytest.mark.parametrize("keep", [0, 1, 5, 12])
def test_a_cold_subset_is_the_hard_one(keep: int):
    scores = torch.from_numpy(np.random.default_rng(1).gumbel(size=12)).float()
    expected = np.zeros(12)
    expected[np.argsort(scores.numpy())[12 - keep :]] = 1
    for temperature in (1e-2, 1e-4, 1e-6):
        found = relaxed_subset(scores, one_pool(12, keep), temperature)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_subset_takes_floors_first_and_each_pool_by_itself():
    """Cold: the best of each layer, then the best of the pool; by hand."""
    scores = torch.tensor([5.0, 4.0, -1.0, -2.0, 3.0, 2.0, 1.0])
    layers = [UnitGroup((0, 1), 1), UnitGroup((2, 3), 1), UnitGroup((4, 5, 6), 0)]
    plan = rounds(layers, [UnitGroup((0, 1, 2, 3), 3), UnitGroup((4, 5, 6), 2)], 7)
    assert relaxed_subset(scores, plan, 1e-3).tolist() == [1, 1, 1, 0, 1, 1, 0]
    warm = relaxed_subset(scores, plan, 1.0)
    assert float(warm[:4].sum()) == pytest.approx(3, abs=1e-5)
    assert float(warm[4:].sum()) == pytest.approx(2, abs=1e-5)
    assert float(warm[2:4].sum()) > 1  # the layer's own round, and a share of the pool's


@pytest.mark.parametrize("temperature", [2.0, 0.5, 0.1])
def test_subset_gradients_against_finite_differences(temperature: float):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(6, dtype=torch.float64, generator=generator, requires_grad=True)
    plan = rounds([UnitGroup((0, 1, 2), 1)], [UnitGroup(tuple(range(6)), 3)], 6)
    assert torch.autograd.gradcheck(lambda s: relaxed_subset(s, plan, temperature), scores)
