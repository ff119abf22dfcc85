"""Gates without training: their pools, what pulls them, and the masks that they become."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compressor.learned_masks import hard_concrete_distribution
from compressor.learned_masks.base import distance_from_hard
from compressor.learned_masks.hard_concrete_gates import HardConcreteGates
from compressor.learned_masks.lagrangian import SQUARE, WARMUP, Lagrangian
from compressor.learned_masks.layout import GateLayout
from compressor.learned_masks.relaxation import UnitGroup, relaxed_subset
from compressor.learned_masks.subset_gates import SubsetGates
from compressor.model.architectures import find_sublayers
from compressor.model.sublayers import Mask
from tests.helpers.tiny import tiny_model

pytestmark = pytest.mark.slow


def test_layout_puts_heads_of_counted_kinds_into_their_pools():
    layers = find_sublayers(tiny_model("marian"))[:8]  # 2 + 3 + 3 layers of 4 heads
    floors = {"encoder_self": 9, "decoder_self": 1, "cross": 2}
    layout = GateLayout(layers, {"encoder_self": 8, "cross": 6}, floors)
    assert layout.total == 20
    assert {n: len(p.members) for n, p in layout.pools.items()} == {"encoder_self": 8, "cross": 12}
    assert [group.count for group in layout.layer_groups] == [4, 4, 2, 2, 2]
    values = torch.arange(20.0)
    parts = layout.split(values)
    assert list(parts) == ["encoder_self.0", "encoder_self.1", "cross.0", "cross.1", "cross.2"]
    mask = layout.exact_mask(values)
    assert mask.counts() == {
        "encoder_self.0": 4, "encoder_self.1": 4, "decoder_self.0": 4, "decoder_self.1": 4,
        "decoder_self.2": 4, "cross.0": 2, "cross.1": 2, "cross.2": 2,
    }  # fmt: skip
    assert mask.kept("cross.0") == [2, 3]
    assert layout.flat(mask).tolist() == [1.0] * 8 + [0.0, 0.0, 1.0, 1.0] * 3
    scores = layout.score_values(values)
    assert set(scores["decoder_self.1"]) == {19.0}
    assert scores["cross.2"] == (16.0, 17.0, 18.0, 19.0)


def test_layout_puts_heads_and_neurons_into_pools_of_their_own():
    layers = find_sublayers(tiny_model("marian"))  # 2 x 48 and 3 x 40 neurons
    floors = dict.fromkeys(Mask.full(layers).kinds(), 0) | {"encoder_ffn": 20}
    multiples = {"heads": 1, "neurons": 8}
    layout = GateLayout(layers, {"encoder_ffn": 49, "cross": 6}, floors, multiples)
    assert layout.total == 2 * 48 + 3 * 4
    assert {n: len(p.members) for n, p in layout.pools.items()} == {"encoder_ffn": 96, "cross": 12}
    values = torch.cat([torch.arange(12.0), torch.arange(96.0)])  # cross-attention comes first
    assert list(layout.split(values)) == [
        "cross.0", "cross.1", "cross.2", "encoder_ffn.0", "encoder_ffn.1"
    ]  # fmt: skip
    mask = layout.exact_mask(values)
    # 24 are the least multiple of 8 above the floor; 24 + 24 would be less than the 49 wanted.
    assert mask.kept("encoder_ffn.0") == list(range(24, 48))
    assert mask.kept("encoder_ffn.1") == list(range(16, 48))
    assert mask.count("cross") == 6
    assert mask.count("decoder_ffn") == 120
    flat = layout.flat(mask)
    assert flat[:12].tolist() == [0.0] * 6 + [1.0] * 6
    assert flat[12:].sum().item() == 56
    # Shares of gates as in training: a sublayer with less than its floor counts with its floor.
    shares = torch.cat([torch.full((12,), 0.5), torch.full((48,), 0.25), torch.full((48,), 0.75)])
    assert layout.count(shares).tolist() == [20 + 36, 6]


def test_without_a_count_open_heads_stay_and_floors_are_filled_up():
    layers = find_sublayers(tiny_model("bert"))[:3]
    layout = GateLayout(layers, None, {"encoder_self": 1})
    values = torch.tensor([-1.0, -2.0, -0.5, -3.0, 2.0, -1.0, 1.0, -9.0, 1.0, 1.0, 1.0, 1.0])
    mask = layout.mask_of(values, values > 0)
    assert [mask.kept(layer.name) for layer in layers] == [[2], [0, 2], [0, 1, 2, 3]]


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
    drawn = hard_concrete_distribution.sample(torch.full((4000,), -0.6), torch.rand(4000))
    assert (drawn == 0).sum() > 2 * (drawn == 1).sum()
    assert [gates.mask().kept(layer.name) for layer in layers] == [[1, 3]] * 3


def test_the_target_falls_to_the_wanted_count_and_stays():
    pools = [UnitGroup(tuple(range(10)), 4), UnitGroup((10, 11), 2)]
    lagrangian = Lagrangian(pools, torch.tensor([0] * 10 + [1] * 2), "cpu")
    found = [lagrangian.target(p).tolist() for p in (0.0, WARMUP / 2, WARMUP, 1.0)]
    np.testing.assert_allclose(found, [[10, 2], [7, 2], [4, 2], [4, 2]])
    assert not lagrangian.reached(torch.tensor([4.0, 2.0]), WARMUP / 2)
    assert lagrangian.reached(torch.tensor([4.4, 2.0]), 1.0)
    assert not lagrangian.reached(torch.tensor([4.6, 2.0]), 1.0)


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


def test_a_cold_subset_and_its_mask_keep_the_same_heads_with_floors():
    layers = find_sublayers(tiny_model("marian"))[:8]
    floors = {"encoder_self": 0, "decoder_self": 1, "cross": 2}
    gates = SubsetGates(GateLayout(layers, {"heads": 11}, floors))
    for seed in range(5):
        with torch.no_grad():
            gates.weight.normal_(0, 9, generator=torch.Generator().manual_seed(seed))
        expected = gates.layout.flat(gates.mask())
        found = relaxed_subset(gates.weight.detach(), gates.rounds, 1e-5)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_layer_at_its_floor_earns_nothing_by_closing():
    layers = find_sublayers(tiny_model("bert"))
    gates = HardConcreteGates(GateLayout(layers, {"heads": 5}, {"encoder_self": 2}))
    with torch.no_grad():
        gates.log_alpha[:4] = -3.0  # expected heads of the first layer: 0.4
    (expected,) = gates.expected()
    expected.backward()
    assert gates.log_alpha.grad is not None
    assert gates.log_alpha.grad[:4].abs().sum().item() == 0
    assert gates.log_alpha.grad[4:].min().item() > 0
    others = hard_concrete_distribution.open_probability(gates.log_alpha.detach()[4:]).sum().item()
    assert expected.item() == pytest.approx(2 + others, rel=1e-6)
