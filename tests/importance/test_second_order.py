"""Second-order scores against brute-force least squares in NumPy and autograd row by row."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from compressor.budgets.units import select
from compressor.importance import SecondOrder
from compressor.importance.second_order import DAMPING, block_removal_order, removal_order
from compressor.importance.statistics import Moments, collect_statistics
from compressor.model.architectures import find_sublayers
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from tests.helpers.stages import score, scoring, with_gradients
from tests.helpers.tiny import STACKS, uneven_mask

HEADS, HEAD_DIM, WIDTH, TOKENS = 4, 3, 5, 200


def problem(seed: int, inputs: int = HEADS * HEAD_DIM) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correlated inputs with a mean [tokens, D], a weight [width, D], gradients [tokens, width]."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(inputs, inputs))
    x = rng.normal(size=(TOKENS, inputs)) @ mixing + rng.normal(size=inputs)
    weight = rng.normal(size=(WIDTH, inputs))
    gradients = rng.normal(size=(TOKENS, WIDTH)) * rng.uniform(0.1, 3, WIDTH)
    return x, weight, gradients


def brute_force_error(
    x: np.ndarray,
    weight: np.ndarray,
    gradients: np.ndarray,
    removed: set[int],
    damping: float,
    unit_width: int = HEAD_DIM,
) -> float:
    """Least squares on the kept columns and an intercept, token by token, then weighted by G.

    The damping is a ridge towards the old weights: rows sqrt(lambda n) I below the centered data.
    """
    kept = [column for column in range(x.shape[1]) if column // unit_width not in removed]
    centered = x - x.mean(0)  # what an intercept does
    ridge = np.sqrt(damping * centered.var(0).mean() * len(x)) * np.eye(x.shape[1])
    rows = np.concatenate([centered, ridge])
    target = rows @ weight.T
    solution = np.linalg.lstsq(rows[:, kept], target, rcond=None)[0]
    residual = target - rows[:, kept] @ solution
    error = 0.0
    for g in gradients:
        error += ((residual @ g) ** 2).sum() / len(x)
    return error / 7  # the statistics below are those of 7 rows of data


def tensors(x: np.ndarray, weight: np.ndarray, gradients: np.ndarray) -> list[torch.Tensor]:
    covariance = np.cov(x, rowvar=False, bias=True)
    return [torch.from_numpy(a) for a in (weight, covariance, gradients.T @ gradients / 7)]


@pytest.mark.parametrize("damping", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(2))
def test_each_removal_is_the_best_choice_by_brute_force(seed: int, damping: float):
    data = problem(seed)
    order = removal_order(*tensors(*data), list(range(HEADS)), HEAD_DIM, damping)
    removed: set[int] = set()
    before = 0.0
    for head, growth in order:
        left = [h for h in range(HEADS) if h not in removed]
        errors = {h: brute_force_error(*data, removed | {h}, damping) for h in left}
        assert head == min(errors, key=errors.__getitem__)
        assert growth == pytest.approx(errors[head] - before, rel=1e-6)
        removed.add(head)
        before = errors[head]
    assert removed == set(range(HEADS))


@pytest.mark.parametrize("damping", [1e-12, DAMPING])
@pytest.mark.parametrize("seed", range(2))
def test_blocks_of_neurons_are_those_with_the_least_errors_by_brute_force(
    seed: int, damping: float
):
    """Least squares in NumPy for each neuron that is left; 2, then 4 and 4 of 10 go together."""
    data = problem(seed, inputs=10)

    def error(removed: set[int]) -> float:
        return brute_force_error(*data, removed, damping, unit_width=1)

    order = block_removal_order(*tensors(*data), list(range(10)), 4, damping)
    removed: set[int] = set()
    for block in (order[:2], order[2:6], order[6:]):
        own = {unit: error(removed | {unit}) for unit in range(10) if unit not in removed}
        units = [unit for unit, _ in block]
        assert units == sorted(own, key=own.__getitem__)[: len(block)]
        growth = error(removed | set(units)) - error(removed)
        for _, share in block:
            assert share == pytest.approx(growth / len(block), rel=1e-6)
        removed |= set(units)
    assert removed == set(range(10))


def test_moments_do_not_depend_on_how_rows_are_grouped():
    """NumPy's covariance in double precision, of rows whose mean is 1,000 times their spread."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 4)) + 1000, rng.normal(size=(300, 2)) - 5
    x = x.astype(np.float32).astype(float)
    moments = Moments(4, 2)
    for rows in (slice(0, 1), slice(1, 1), slice(1, 200), slice(200, 300)):
        moments.add(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]))
    both = np.cov(x, y, rowvar=False, bias=True)
    np.testing.assert_allclose(moments.covariance(), both[:4, :4], atol=1e-4)
    np.testing.assert_allclose(moments.cross_covariance(), both[:4, 4:], atol=1e-4)
    np.testing.assert_allclose(moments.covariance(centered=False), x.T @ x / 300, rtol=1e-6)
    np.testing.assert_allclose(moments.cross_covariance(centered=False), x.T @ y / 300, rtol=1e-6)
    assert moments.other_square() == pytest.approx((y**2).sum(1).mean(), rel=1e-6)


@pytest.mark.parametrize("name", STACKS)
def test_statistics_against_autograd_row_by_row(name: str):
    """Each row alone, without padding, through retained gradients; sums in NumPy."""
    setup = scoring(name)
    found, _ = collect_statistics(setup)
    inputs: dict[str, list[np.ndarray]] = {layer.name: [] for layer in setup.layers}
    gradients: dict[str, list[np.ndarray]] = {layer.name: [] for layer in setup.layers}
    for row in range(3):
        for layer, (given, output) in with_gradients(setup, row).items():
            inputs[layer].append(given.detach()[0].numpy())
            gradients[layer].append(output.grad[0].numpy())
    for layer, (found_covariance, sensitivity) in found.items():
        x, g = np.concatenate(inputs[layer]), np.concatenate(gradients[layer])
        covariance = np.cov(x, rowvar=False, bias=True)
        scale = np.abs(covariance).max()
        np.testing.assert_allclose(found_covariance, covariance, atol=1e-5 * scale)
        expected = sum(np.outer(v, v) for v in g.astype(float)) / 3
        np.testing.assert_allclose(
            sensitivity, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max()
        )


def test_ascending_scores_follow_the_removal_order_of_each_layer():
    """However many units are removed, those of a layer are the first of its removal order."""
    setup = scoring("marian")
    found = score("second-order", setup)
    statistics, _ = collect_statistics(setup)
    full = Mask.full(setup.layers)
    orders = {}
    for layer in setup.layers:
        weight = setup.model.get_submodule(layer.output).weight.detach().double()
        arguments = (weight, *statistics[layer.name], list(range(layer.units)))
        orders[layer.name] = (
            removal_order(*arguments, layer.unit_width)
            if layer.is_attention
            else block_removal_order(*arguments)
        )
    for share in np.linspace(0, 1, 11):
        keep = {pool: round(share * full.total(pool)) for pool in ("heads", "neurons")}
        mask = select(found, full, keep, dict.fromkeys(full.kinds(), 0))
        for layer in setup.layers:
            gone = {unit for unit, keep in enumerate(mask.keep[layer.name]) if not keep}
            assert gone == {unit for unit, _ in orders[layer.name][: len(gone)]}


def test_a_masked_model_scores_as_the_pruned_one():
    """The pruned model is a different network with fewer heads, scored without any mask."""
    setup = scoring("marian")
    mask = Mask({n: (True, *flags[1:]) for n, flags in uneven_mask(setup.layers).keep.items()})
    masked = score("second-order", dataclasses.replace(setup, mask=mask))
    model = prune(setup.model, setup.layers, mask)
    layers = find_sublayers(model)
    smaller = dataclasses.replace(setup, model=model, layers=layers, mask=Mask.full(layers))
    pruned = score("second-order", smaller)
    for layer, values in masked.values.items():
        kept = [value for value, keep in zip(values, mask.keep[layer], strict=True) if keep]
        np.testing.assert_allclose(kept, pruned.values[layer], rtol=1e-3)
        assert {v for v, keep in zip(values, mask.keep[layer], strict=True) if not keep} <= {0.0}


def test_statistics_in_groups_give_the_same_scores():
    """To the bit, with units that are removed already, and with more passes over the rows."""
    setup = scoring("marian")
    first = setup.layers[0].name
    setup = dataclasses.replace(setup, mask=setup.mask.without([(first, 0)]))
    steps: list[tuple[int, int]] = []
    watched = dataclasses.replace(setup, progress=lambda *step: steps.append(step))
    together = SecondOrder().score(setup)
    apart = SecondOrder(statistics_memory=1e-9).score(watched)
    assert apart.values == together.values
    assert apart.forward_passes == len(setup.layers) * together.forward_passes
    batches = len(setup.batches) * len(setup.layers)
    assert steps == [(done, batches) for done in range(1, batches + 1)]
