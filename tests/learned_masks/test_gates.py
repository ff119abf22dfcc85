"""Gates without training: their pools, what pulls them, and the masks that they become."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compressor.learned_masks.base import GateLayout, UnitGroup, distance_from_hard
from compressor.learned_masks.hard_concrete_gates import (
    SQUARE,
    HardConcreteGates,
    Lagrangian,
    sample,
)
from compressor.learned_masks.subset_gates import SubsetGates
from compressor.model.architectures import find_sublayers
from tests.helpers.tiny import tiny_model

pytestmark = pytest.mark.slow


def test_multipliers_climb_while_there_are_too_many_heads_and_pull_only_on_open_gates():
    lagrangian = Lagrangian([UnitGroup((0, 1, 2, 3), 2)], torch.zeros(4, dtype=torch.long), "cpu")
    lagrangian.observe(torch.tensor([0.4, -0.9, 0.1, 0.1]))  # a batch in two parts, whose
    lagrangian.observe(torch.tensor([0.1, 0.4, 0.0, 0.0]))  # gradients are those of one in sum
    lagrangian.take_step()
    assert lagrangian.sensitivity.item() == pytest.approx(0.3)
    expected = torch.tensor([3.0], requires_grad=True)
    value = lagrangian.penalty(expected, progress=1.0)
    value.backward()
    assert value.item() == 0
    # By hand: excess (3 - 2) / 4, unit 0.3 * 4; d/ds of 5 x^2, and minus x and x^2 (ascent).
    assert expected.grad is not None
    assert lagrangian.multipliers.grad is not None
    np.testing.assert_allclose(expected.grad, [1.2 * 2 * SQUARE * 0.25 / 4], rtol=1e-6)
    np.testing.assert_allclose(lagrangian.multipliers.grad, [[-1.2 * 0.25, -1.2 * 0.0625]])


def test_each_pool_is_pulled_as_strongly_as_the_loss_cares_for_its_gates():
    """A neuron's gradient is a hundredth of a head's; by hand, as above, for each pool alone."""
    pools = [UnitGroup((0, 2), 1), UnitGroup((1, 3, 4, 5), 2)]
    lagrangian = Lagrangian(pools, torch.tensor([0, 1, 0, 1, 1, 1]), "cpu")
    gradient = torch.tensor([0.3, -0.004, -0.5, 0.002, 0.001, -0.001])
    lagrangian.observe(gradient)
    lagrangian.take_step()
    np.testing.assert_allclose(lagrangian.sensitivity, [0.4, 0.002], rtol=1e-6)
    lagrangian.observe(2 * gradient)
    lagrangian.take_step()  # nine parts of the old mean, one of the new
    np.testing.assert_allclose(lagrangian.sensitivity, [0.44, 0.0022], rtol=1e-5)
    expected = torch.tensor([2.0, 3.0], requires_grad=True)
    lagrangian.penalty(expected, progress=1.0).backward()
    pull = [0.44 * 2 * 2 * SQUARE * 0.5 / 2, 0.0022 * 4 * 2 * SQUARE * 0.25 / 4]
    np.testing.assert_allclose(expected.grad, pull, rtol=1e-5)


def test_with_a_penalty_a_gate_is_what_it_is_more_probably():
    """At log alpha -0.6 a gate is not 0 in 55 % of the draws, but 1 in 20 % only."""
    layers = find_sublayers(tiny_model("bert"))[:3]
    gates = HardConcreteGates(GateLayout(layers, None, {"encoder_self": 0}), penalty=0.1)
    with torch.no_grad():
        gates.log_alpha.copy_(torch.tensor([-0.6, 0.1, -0.1, 2.0] * 3))
    drawn = sample(torch.full((4000,), -0.6), torch.rand(4000))
    assert (drawn == 0).sum() > 2 * (drawn == 1).sum()
    assert [gates.mask().kept(layer.name) for layer in layers] == [[1, 3]] * 3


@pytest.mark.parametrize("estimator", ["gumbel", "straight-through"])
def test_subset_gates_sum_to_the_count_and_harden(estimator):
    layers = find_sublayers(tiny_model("marian"))[:8]
    floors = {"encoder_self": 1, "decoder_self": 1, "cross": 1}
    gates = SubsetGates(
        GateLayout(layers, {"encoder_self": 3, "cross": 5}, floors), estimator=estimator
    )
    with torch.no_grad():
        gates.weight.normal_(generator=torch.Generator().manual_seed(0))
    for progress in (0.0, 0.5, 1.0):
        drawn = gates.draw(progress)
        assert drawn[:8].sum().item() == pytest.approx(3, abs=1e-4)
        assert drawn[8:].sum().item() == pytest.approx(5, abs=1e-4)
        exact = bool(((drawn == 0) | (drawn == 1)).all())
        assert exact or (estimator == "gumbel")
        assert not exact or progress > 0 or (estimator == "straight-through")
        (drawn * torch.randn(20)).sum().backward()
    assert (
        distance_from_hard(gates.without_noise(1.0))[1]
        < distance_from_hard(gates.without_noise(0.0))[1] / 10
    )
    assert gates.temperature(1.0) < gates.temperature(0.5) < gates.temperature(0.0)
