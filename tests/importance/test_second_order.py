"""Second-order scores against brute-force least squares in NumPy and autograd row by row."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from compressor.budgets.units import select
from compressor.errors import InputError
from compressor.importance import SecondOrder
from compressor.importance.second_order import DAMPING, block_removal_order, removal_order
from compressor.importance.statistics import Moments, collect_statistics, groups_within
from compressor.model.layers import find_sublayers
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.tasks import Batch
from tests.helpers.batches import labelled_batch
from tests.helpers.errors import raises
from tests.helpers.stages import score, scoring, with_gradients
from tests.helpers.tiny import STACKS, tiny_model, uneven_mask

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


def test_errors_are_computed_anew_after_each_removal():
    """Head 1 copies head 0: either is free, but not both. Scores taken once would remove both."""
    x, weight, gradients = problem(0)
    x[:, HEAD_DIM : 2 * HEAD_DIM] = x[:, :HEAD_DIM]
    order = removal_order(*tensors(x, weight, gradients), list(range(HEADS)), HEAD_DIM)
    (first, free), rest = order[0], dict(order[1:])
    assert first in (0, 1)
    assert rest[1 - first] > 100 * free


@pytest.mark.parametrize("unit_width", [HEAD_DIM, 1])
def test_units_that_are_gone_take_no_part(unit_width: int):
    x, weight, gradients = problem(1)
    x[:, 9:] = 0
    kept = list(range(9 // unit_width))

    def order_of(columns: int, kept: list[int]) -> dict[int, float]:
        data = tensors(x[:, :columns], weight[:, :columns], gradients)
        if unit_width == 1:
            return dict(block_removal_order(*data, kept, 4))
        return dict(removal_order(*data, kept, unit_width))

    order, without = order_of(12, kept), order_of(9, kept)
    assert list(order) == list(without)
    assert order == pytest.approx(without)
    assert order_of(12, []) == {}


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


def test_the_error_of_removing_neurons_is_the_schur_complements():
    """tr(G W_S (C_SS - C_SK C_KK^-1 C_KS) W_S^T) in NumPy, after each of many small blocks."""
    weight, covariance, sensitivity = (a.numpy() for a in tensors(*problem(5, inputs=60)))
    ridge = DAMPING * np.trace(covariance) / 60
    damped = covariance + ridge * np.eye(60)
    arguments = (torch.from_numpy(a) for a in (weight, covariance, sensitivity))
    order = block_removal_order(*arguments, list(range(60)), 3)
    total = 0.0
    for number in range(60):
        total += order[number][1]
        if number % 3 < 2:
            continue
        gone = [unit for unit, _ in order[: number + 1]]
        kept = [unit for unit in range(60) if unit not in gone]
        rest = damped[np.ix_(gone, gone)] - damped[np.ix_(gone, kept)] @ np.linalg.solve(
            damped[np.ix_(kept, kept)], damped[np.ix_(kept, gone)]
        )
        expected = np.trace(sensitivity @ weight[:, gone] @ rest @ weight[:, gone].T)
        assert total == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_moments_of_many_columns_against_numpy(precision: torch.dtype):
    """Several panels of columns, the last one narrower; batches with means of their own."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 700)) + np.repeat(rng.normal(size=(4, 700)), 100, 0)
    y = x[:, :3] * 2 + rng.normal(size=(400, 3))
    parts = [Moments(700, 3, precision=precision) for _ in range(2)]
    for number, start in enumerate((0, 100, 200, 300)):
        rows = slice(start, start + 100)
        parts[number // 2].add(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]))
    moments = Moments(700, 3, precision=precision)
    for part in parts:
        moments.merge(part)
    both = np.cov(x, y, rowvar=False, bias=True)
    found = moments.covariance()
    assert found.dtype == precision
    np.testing.assert_allclose(found, both[:700, :700], atol=2e-5)
    np.testing.assert_allclose(moments.cross_covariance(), both[:700, 700:], atol=2e-5)
    np.testing.assert_allclose(moments.covariance(centered=False), x.T @ x / 400, atol=2e-5)
    np.testing.assert_allclose(found, found.T, atol=1e-6)
    assert moments.cross_covariance().dtype == torch.float64
    assert moments.other_square() == pytest.approx((y**2).sum(1).mean(), rel=1e-5)


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


def test_without_a_bias_nothing_takes_up_the_mean():
    setup = scoring("bert")
    layer = setup.layers[0]
    centered = collect_statistics(setup)[0][layer.name][0]
    setup.model.get_submodule(layer.output).bias = None
    raw = collect_statistics(setup)[0][layer.name][0]
    assert raw.trace() > centered.trace() * 1.01
    assert torch.linalg.matrix_rank(raw - centered, rtol=1e-4) == 1  # the mean's outer product


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


def test_raised_scores_stay_in_order(monkeypatch: pytest.MonkeyPatch):
    """Errors that fall along the order, which least squares can produce, or are all zero."""
    fixed = [(2, 5.0), (0, 1.0), (3, 1.0), (1, 6.0)]
    monkeypatch.setattr("compressor.importance.second_order.removal_order", lambda *_: fixed)
    scores = SecondOrder().score(scoring("bert", units="heads")).values["encoder_self.0"]
    assert scores[2] == 5.0
    assert scores[2] < scores[0] < scores[3] < 5.0001
    assert scores[1] == 6.0
    fixed[:] = [(2, 0.0), (0, 0.0), (3, 0.0), (1, 0.0)]
    scores = SecondOrder().score(scoring("bert", units="heads")).values["encoder_self.0"]
    assert 0 < scores[2] < scores[0] < scores[3] < scores[1] < 1e-300


def test_scores_are_a_property_of_rows_not_of_how_many_there_are():
    batch = labelled_batch(tiny_model("bert"), rows=5)
    twice = [batch, Batch(batch, batch.rows)]
    once = score("second-order", scoring("bert", [batch]))
    for name, values in score("second-order", scoring("bert", twice)).values.items():
        np.testing.assert_allclose(values, once.values[name], rtol=1e-4)


def test_a_broken_model_is_named_not_scored():
    setup = scoring("bert")
    with torch.no_grad():
        setup.model.get_submodule(setup.layers[1].inputs["value"]).weight.fill_(float("nan"))
    with raises(InputError, "activations-not-finite") as caught:
        score("second-order", setup)
    assert "encoder_self." in str(caught.value)


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


def test_wide_sublayers_have_statistics_in_single_precision(monkeypatch):
    """Attentions too, as those of more than 1,024 columns."""
    setup = scoring("marian")
    method = SecondOrder()
    expected = method.score(setup)
    monkeypatch.setattr("compressor.importance.statistics._WIDE", 8)
    found = method.score(setup)
    for layer in setup.layers:
        assert found.values[layer.name] == pytest.approx(expected.values[layer.name], rel=1e-3)


def test_groups_are_as_large_as_memory_allows(monkeypatch):
    setup = scoring("bert")
    assert groups_within(setup) == [list(setup.layers)]
    # Of each sublayer D x D and width x width numbers, here all of 8 bytes.
    sizes = [
        8 * ((x.units * x.unit_width) ** 2 + setup.model.config.hidden_size**2)
        for x in setup.layers
    ]
    monkeypatch.setattr(
        "compressor.importance.statistics.free_bytes", lambda device: 2 * (sizes[0] + sizes[1])
    )
    groups = groups_within(setup)
    assert [layer for group in groups for layer in group] == list(setup.layers)
    assert groups[0] == list(setup.layers[:2])
    assert len(groups) > 1
