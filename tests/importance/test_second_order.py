"""Second-order scores against brute-force least squares in NumPy and autograd row by row."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from compressor.budgets.counts import select
from compressor.errors import InputError
from compressor.importance import score_heads
from compressor.importance.second_order import DAMPING, removal_order, score
from compressor.importance.statistics import Moments, collect_statistics
from compressor.model.architectures import find_sublayers
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.tasks import Batch
from tests.helpers.batches import labelled_batch, one_row
from tests.helpers.errors import raises
from tests.helpers.stages import scoring
from tests.helpers.tiny import BUILDERS, tiny_model, uneven_mask

HEADS, HEAD_DIM, WIDTH, TOKENS = 4, 3, 5, 200


def problem(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correlated inputs with a mean [tokens, D], a weight [width, D], gradients [tokens, width]."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(HEADS * HEAD_DIM, HEADS * HEAD_DIM))
    x = rng.normal(size=(TOKENS, HEADS * HEAD_DIM)) @ mixing + rng.normal(size=HEADS * HEAD_DIM)
    weight = rng.normal(size=(WIDTH, HEADS * HEAD_DIM))
    gradients = rng.normal(size=(TOKENS, WIDTH)) * rng.uniform(0.1, 3, WIDTH)
    return x, weight, gradients


def brute_force_error(
    x: np.ndarray, weight: np.ndarray, gradients: np.ndarray, removed: set[int], damping: float
) -> float:
    """Least squares on the kept columns and an intercept, token by token, then weighted by G.

    The damping is a ridge towards the old weights: rows sqrt(lambda n) I below the centered data.
    """
    kept = [h * HEAD_DIM + i for h in range(HEADS) if h not in removed for i in range(HEAD_DIM)]
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


@pytest.mark.parametrize("damping", [0.0, DAMPING, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_each_removal_is_the_best_choice_by_brute_force(seed: int, damping: float):
    data = problem(seed)
    order = removal_order(*tensors(*data), list(range(HEADS)), HEAD_DIM, damping)
    removed: set[int] = set()
    before = 0.0
    for head, growth in order:
        errors = {
            h: brute_force_error(*data, removed | {h}, damping)
            for h in range(HEADS)
            if h not in removed
        }
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


def test_heads_that_are_gone_take_no_part():
    x, weight, gradients = problem(1)
    x[:, 3 * HEAD_DIM :] = 0
    order = removal_order(*tensors(x, weight, gradients), [0, 1, 2], HEAD_DIM)
    without = removal_order(*tensors(x[:, :9], weight[:, :9], gradients), [0, 1, 2], HEAD_DIM)
    assert dict(order) == pytest.approx(dict(without))
    assert [head for head, _ in order] == [head for head, _ in without]
    assert removal_order(*tensors(x, weight, gradients), [], HEAD_DIM) == []


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


@pytest.mark.parametrize("name", ["marian", "mbart", "bert"])
def test_statistics_against_autograd_row_by_row(name: str):
    """Each row alone, without padding, through retained gradients; sums in NumPy."""
    setup = scoring(name)
    found, _ = collect_statistics(setup)
    inputs: dict[str, list[np.ndarray]] = {layer.name: [] for layer in setup.layers}
    gradients: dict[str, list[np.ndarray]] = {layer.name: [] for layer in setup.layers}
    for row in range(3):
        seen = {}

        def keep(module, arguments, output, seen=seen):
            output.retain_grad()
            seen[module] = (arguments[0].detach(), output)

        modules = {x.name: setup.model.get_submodule(x.output) for x in setup.layers}
        handles = [module.register_forward_hook(keep) for module in modules.values()]
        setup.task.loss(setup.model, one_row(setup.batches[0], row)).backward()
        for handle in handles:
            handle.remove()
        for layer, module in modules.items():
            inputs[layer].append(seen[module][0][0].numpy())
            gradients[layer].append(seen[module][1].grad[0].numpy())
    for layer, statistics in found.items():
        x, g = np.concatenate(inputs[layer]), np.concatenate(gradients[layer])
        covariance = np.cov(x, rowvar=False, bias=True)
        scale = np.abs(covariance).max()
        np.testing.assert_allclose(statistics.covariance, covariance, atol=1e-5 * scale)
        expected = sum(np.outer(v, v) for v in g.astype(float)) / 3
        np.testing.assert_allclose(
            statistics.sensitivity, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max()
        )
        assert statistics.tokens == len(x)


def test_without_a_bias_nothing_takes_up_the_mean():
    setup = scoring("bert")
    layer = setup.layers[0]
    centered = collect_statistics(setup)[0][layer.name].covariance
    setup.model.get_submodule(layer.output).bias = None
    raw = collect_statistics(setup)[0][layer.name].covariance
    assert raw.trace() > centered.trace() * 1.01
    assert torch.linalg.matrix_rank(raw - centered, rtol=1e-4) == 1  # the mean's outer product


@pytest.mark.parametrize("name", BUILDERS)
def test_every_architecture_gets_a_score_for_every_head(name: str):
    setup = scoring(name)
    found = score_heads("second-order", setup)
    assert {n: len(v) for n, v in found.values.items()} == Mask.full(setup.layers).counts()
    values = np.concatenate(list(found.values.values()))
    assert np.isfinite(values).all()
    assert (values > 0).all()
    assert (found.cost["forward_passes"], found.cost["backward_passes"]) == (1, 1)


@pytest.mark.parametrize("name", ["marian", "bert"])
def test_ascending_scores_follow_the_removal_order_of_each_layer(name: str):
    """However many heads are removed, those of a layer are the first of its removal order."""
    setup = scoring(name)
    found = score_heads("second-order", setup)
    statistics, _ = collect_statistics(setup)
    full = Mask.full(setup.layers)
    for count in range(0, full.total() + 1, 3):
        mask = select(found, full, {"heads": full.total() - count}, dict.fromkeys(full.kinds(), 0))
        for layer in setup.layers:
            weight = setup.model.get_submodule(layer.output).weight.detach().double()
            moments = statistics[layer.name]
            order = removal_order(
                weight, moments.covariance, moments.sensitivity, list(range(4)), layer.unit_width
            )
            gone = {head for head, keep in enumerate(mask.keep[layer.name]) if not keep}
            assert gone == {head for head, _ in order[: len(gone)]}


def test_raised_scores_stay_in_order(monkeypatch: pytest.MonkeyPatch):
    """Errors that fall along the order, which least squares can produce, or are all zero."""
    fixed = [(2, 5.0), (0, 1.0), (3, 1.0), (1, 6.0)]
    monkeypatch.setattr("compressor.importance.second_order.removal_order", lambda *_: fixed)
    scores = score(scoring("bert")).values["encoder_self.0"]
    assert scores[2] == 5.0
    assert scores[2] < scores[0] < scores[3] < 5.0001
    assert scores[1] == 6.0
    fixed[:] = [(2, 0.0), (0, 0.0), (3, 0.0), (1, 0.0)]
    scores = score(scoring("bert")).values["encoder_self.0"]
    assert 0 < scores[2] < scores[0] < scores[3] < scores[1] < 1e-300


def test_padding_and_batching_do_not_change_scores():
    batch = labelled_batch(tiny_model("marian"), rows=5)
    together = score_heads("second-order", scoring("marian", [batch]))
    alone = [one_row(batch, row) for row in range(5)]
    apart = score_heads("second-order", scoring("marian", alone))
    for name, values in together.values.items():
        np.testing.assert_allclose(values, apart.values[name], rtol=1e-3)


def test_scores_are_a_property_of_rows_not_of_how_many_there_are():
    batch = labelled_batch(tiny_model("bert"), rows=5)
    twice = [batch, Batch(batch, batch.rows)]
    once = score_heads("second-order", scoring("bert", [batch]))
    for name, values in score_heads("second-order", scoring("bert", twice)).values.items():
        np.testing.assert_allclose(values, once.values[name], rtol=1e-4)


@pytest.mark.parametrize("name", ["marian", "distilbert"])
def test_a_masked_model_scores_as_the_pruned_one(name: str):
    """The pruned model is a different network with fewer heads, scored without any mask."""
    setup = scoring(name)
    mask = Mask({n: (True, *flags[1:]) for n, flags in uneven_mask(setup.layers).keep.items()})
    masked = score_heads("second-order", dataclasses.replace(setup, mask=mask))
    model = prune(setup.model, setup.layers, mask)
    layers = find_sublayers(model)
    smaller = dataclasses.replace(setup, model=model, layers=layers, mask=Mask.full(layers))
    pruned = score_heads("second-order", smaller)
    for layer, values in masked.values.items():
        kept = [value for value, keep in zip(values, mask.keep[layer], strict=True) if keep]
        np.testing.assert_allclose(kept, pruned.values[layer], rtol=1e-3)
        assert {v for v, keep in zip(values, mask.keep[layer], strict=True) if not keep} <= {0.0}


def test_a_broken_model_is_named_not_scored():
    setup = scoring("bert")
    with torch.no_grad():
        setup.model.get_submodule(setup.layers[1].inputs["value"]).weight.fill_(float("nan"))
    with raises(InputError, "activations-not-finite") as caught:
        score_heads("second-order", setup)
    assert "encoder_self." in str(caught.value)
