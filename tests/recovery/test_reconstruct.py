"""Reconstruction against NumPy's least squares, and on models where it can be exact."""

from __future__ import annotations

import copy
import dataclasses
import re

import numpy as np
import pytest
import scipy.linalg
import torch

from compressor.importance.statistics import Moments
from compressor.model.layers import find_sublayers
from compressor.model.modeling_pruned import OutputBias
from compressor.model.modes import is_normalization
from compressor.model.sublayers import Mask, by_layer
from compressor.model.surgery import remaining_sublayers
from compressor.recovery import RecoveryJob, least_squares
from tests.helpers.stages import (
    MANY,
    difference,
    divergence,
    job,
    module_rows,
    one_head,
    reconstructed,
    repair,
)
from tests.helpers.tiny import STACKS, empty_first_mask, tiny_model, uneven_mask

pytestmark = pytest.mark.slow


def without_neurons(count: int | None):
    """A mask that removes every so many-th neuron of each feed-forward part, or all; no head."""
    return lambda layers: Mask.full(layers).without(
        (x.name, neuron)
        for x in layers
        if not x.is_attention
        for neuron in range(0, x.units, count or 1)
    )


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        *((name, uneven_mask) for name in STACKS),
        ("marian", empty_first_mask),
        ("bert", without_neurons(2)),
    ],
)
def test_logits_come_closer_to_the_dense_models(name: str, mask):
    setup = job(name, mask, rows=200)
    before = difference(setup, setup.pruned)
    recovered = repair(setup, reconstruct={})
    assert difference(setup, recovered.model) < 0.8 * before
    assert re.search(r"re-solved on 200 rows; .* \d\d % smaller", recovered.text)


@pytest.mark.parametrize(("kind", "rtol"), [("encoder_self", 1e-3), ("encoder_ffn", 5e-3)])
def test_the_first_repair_is_ridge_regression_towards_the_old_weights(kind, rtol):
    """By NumPy: rows sqrt(lambda n) I below the centered inputs x pull towards the old weight.

    Nothing differs before the first attention, nor before the first feed-forward part while no head
    goes, so what is missing in the stream is missing at its projection.
    """
    attention = kind == "encoder_self"
    mask, rows = (one_head(0, 2), 48) if attention else (without_neurons(3), MANY)
    damping = least_squares.DAMPING if attention else least_squares.FEED_FORWARD_DAMPING
    setup = job("bert", mask, rows=rows)
    layer = next(x for x in setup.layers if x.kind == kind)
    _, wanted = module_rows(setup.dense, layer.output, setup, kind)
    x, outputs = module_rows(setup.pruned, layer.output, setup, kind)
    old = setup.pruned.get_submodule(layer.output).weight.detach().double().numpy()
    centered = x - x.mean(0)
    ridge = np.sqrt(damping * centered.var(0).mean() * len(x)) * np.eye(x.shape[1])
    solution = np.linalg.lstsq(
        np.concatenate([centered, ridge]),
        np.concatenate([wanted - wanted.mean(0), ridge @ old.T]),
        rcond=None,
    )[0].T
    intercept = wanted.mean(0) - solution @ x.mean(0)
    projection = reconstructed(setup).get_submodule(layer.output)
    weight, bias = projection.weight.detach().numpy(), projection.bias.detach().numpy()
    np.testing.assert_allclose(weight, solution, rtol=rtol, atol=rtol / 10)
    np.testing.assert_allclose(bias, intercept, rtol=rtol, atol=rtol / 10)
    repaired = x @ weight.T + bias
    assert ((repaired - wanted) ** 2).mean() < 0.7 * ((outputs - wanted) ** 2).mean()


def test_a_feed_forward_part_makes_up_for_what_attention_left():
    """SciPy's solve of the normal equations, on what the first block then lacks.

    What is missing in the residual stream is read off the layer norm that comes next, whose input
    the stream is; the first attention layer has been repaired before.
    """
    setup = job("bert", one_head(0, 2), rows=MANY)
    root, members = next(iter(by_layer(setup.layers).items()))
    block, norm = members[-1], f"{root}.output.LayerNorm"
    attention, model = copy.deepcopy(setup.pruned), reconstructed(setup)
    first = setup.layers[0].output
    repaired = model.get_submodule(first).state_dict()
    attention.get_submodule(first).load_state_dict(repaired)
    x, _ = module_rows(attention, block.output, setup, block.kind)
    wanted, _ = module_rows(setup.dense, norm, setup, block.kind)
    found, _ = module_rows(attention, norm, setup, block.kind)
    missing, centered = wanted - found, x - x.mean(0)
    covariance = centered.T @ centered / len(x)
    ridge = least_squares.FEED_FORWARD_DAMPING * covariance.diagonal().mean()
    step = scipy.linalg.solve(
        covariance + ridge * np.eye(len(covariance)),
        centered.T @ (missing - missing.mean(0)) / len(x),
        assume_a="pos",
    ).T
    module, old = (x.get_submodule(block.output) for x in (model, attention))
    change = (module.weight - old.weight).detach().numpy()
    np.testing.assert_allclose(change, step, rtol=5e-3, atol=2e-4)
    offset = missing.mean(0) - step @ x.mean(0)
    np.testing.assert_allclose((module.bias - old.bias).detach(), offset, rtol=5e-3, atol=5e-4)


def without_layer(name: str, dropped: str, rows: int = MANY) -> RecoveryJob:
    """Of a tiny model, whose normalizations all differ."""
    model = tiny_model(name)
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if is_normalization(module):
            module.weight.data += torch.rand(module.weight.shape, generator=generator)
    setup = job(name, lambda layers: Mask.full(layers).without_layers([dropped]), rows, model)
    return dataclasses.replace(setup, layers=remaining_sublayers(setup.pruned, setup.layers))


def test_a_layer_stands_for_the_dropped_one_behind_it():
    """SciPy's solve for the stream that the dropped layer would have made, and its normalization.

    Attention in front of it changes nothing, since nothing is missing there.
    """
    setup = without_layer("bert", "encoder.1")
    model = reconstructed(setup)
    first, second = (
        [x for x in find_sublayers(setup.dense) if x.layer == f"encoder.{i}"][-1] for i in (0, 1)
    )
    path, behind = (f"{x.layer_path}.output.LayerNorm" for x in (first, second))
    x, _ = module_rows(setup.pruned, first.output, setup, first.kind)
    wanted, _ = module_rows(setup.dense, behind, setup, first.kind)
    found, _ = module_rows(setup.pruned, path, setup, first.kind)
    missing, centered = wanted - found, x - x.mean(0)
    covariance = centered.T @ centered / len(x)
    ridge = least_squares.FEED_FORWARD_DAMPING * covariance.diagonal().mean()
    step = scipy.linalg.solve(
        covariance + ridge * np.eye(len(covariance)),
        centered.T @ (missing - missing.mean(0)) / len(x),
        assume_a="pos",
    ).T
    module, old = (m.get_submodule(first.output) for m in (model, setup.pruned))
    change = (module.weight - old.weight).detach().numpy()
    np.testing.assert_allclose(change, step, rtol=5e-3, atol=2e-4)
    ours, theirs = model.get_submodule(path), setup.dense.get_submodule(behind)
    assert torch.equal(ours.weight, theirs.weight)
    assert not torch.equal(ours.weight, setup.pruned.get_submodule(path).weight)


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("place", ["last", "middle"])
def test_without_a_layer_predictions_come_closer(name: str, place: str):
    """Of whichever form: what normalizes before sublayers, too, and reads one token alone."""
    layers = Mask.full(find_sublayers(tiny_model(name))).layers()
    dropped = layers[-1] if place == "last" else layers[-2]
    setup = without_layer(name, dropped, rows=200)
    model = reconstructed(setup)
    assert difference(setup, model) < difference(setup, setup.pruned)


def test_the_gain_is_the_fall_of_the_mean_square():
    """E|e|^2 - E|e - change x - offset|^2, in NumPy from the rows themselves."""
    rng = np.random.default_rng(0)
    x, e = rng.normal(size=(50, 4)) + 3, rng.normal(size=(50, 2)) - 1
    change, offset = rng.normal(size=(2, 4)), rng.normal(size=2)
    moments = Moments(4, 2)
    moments.add(torch.from_numpy(x), torch.from_numpy(e))
    expected = (e**2).sum(1).mean() - ((e - x @ change.T - offset) ** 2).sum(1).mean()
    found = least_squares._gain(moments, torch.from_numpy(change), torch.from_numpy(offset))
    assert found == pytest.approx(expected, rel=1e-5)


def test_padding_is_not_looked_at():
    """Wider padding of the same rows, filled with other tokens, changes no weight noticeably."""
    setup = job("bert")
    wide = []
    for batch in setup.task.batches(setup.examples, setup.dense):
        padded = copy.copy(batch)
        for part, value in batch.inputs().items():
            extra = torch.full((len(value), 6), 7 if part == "input_ids" else 0)
            padded[part] = torch.cat([value, extra], 1)
        wide.append(padded)
    task = copy.copy(setup.task)
    task.batches = lambda rows, model, **options: wide
    other = reconstructed(dataclasses.replace(setup, task=task)).state_dict()
    for key, value in reconstructed(setup).state_dict().items():
        torch.testing.assert_close(value, other[key], rtol=1e-3, atol=1e-4)


def test_few_rows_do_no_harm_on_others(monkeypatch):
    """Fitted to eight rows as if they were many, a model would get worse at all others."""
    setup = job("marian", rows=200)
    few, others = setup.examples[:8], setup.examples[8:]
    setup = dataclasses.replace(setup, examples=few)
    careful = divergence(setup, reconstructed(setup), others)
    monkeypatch.setattr(least_squares, "HELD_OUT", 10**6)
    assert careful <= divergence(setup, setup.pruned, others)
    assert divergence(setup, reconstructed(setup), others) > careful


@pytest.mark.parametrize("name", ["marian", "distilbert"])
@pytest.mark.parametrize(
    ("mask", "kind"), [(empty_first_mask, "encoder_self"), (without_neurons(None), "encoder_ffn")]
)
def test_an_emptied_sublayer_answers_with_the_mean(name: str, mask, kind: str):
    setup = job(name, mask)
    layer = next(x for x in setup.layers if x.kind == kind)
    _, wanted = module_rows(setup.dense, layer.output, setup, layer.kind)
    stand_in = reconstructed(setup).get_submodule(layer.output)
    assert isinstance(stand_in, OutputBias)
    np.testing.assert_allclose(stand_in.bias.detach(), wanted.mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("without", ["biases", "precision"])
def test_weights_keep_their_form(without: str):
    """Projections without a bias get none; those in half precision hold the repair."""
    model = tiny_model("bert")
    for layer in find_sublayers(model) if without == "biases" else ():
        model.get_submodule(layer.output).bias = None
    setup = job("bert", model=model)
    if without == "precision":
        setup.dense.bfloat16(), setup.pruned.bfloat16()
    repaired = reconstructed(setup)
    assert difference(setup, repaired) < difference(setup, setup.pruned)
    before = {name: x.dtype for name, x in setup.pruned.named_parameters()}
    assert {name: x.dtype for name, x in repaired.named_parameters()} == before
