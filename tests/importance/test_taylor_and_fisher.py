"""Scores against independent computations: finite differences of gates, and NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from compressor.errors import InputError, UsageError
from compressor.importance import METHODS
from compressor.model.surgery import gated
from compressor.tasks import Batch
from tests.helpers.batches import labelled_batch, one_row
from tests.helpers.errors import raises
from tests.helpers.numpy_transformer import NumpyTransformer, mask_arrays, with_gate
from tests.helpers.stages import rows_of, score, scoring
from tests.helpers.tiny import BUILDERS, tiny_model, uneven_mask


@pytest.mark.parametrize("name", BUILDERS)
def test_taylor_per_example_is_the_gates_derivative(name: str):
    """d loss / d gate at 1 is sum a_h . dL/da_h: central differences in float64, row by row."""
    setup = scoring(name)
    found = score("taylor", setup, per="example", normalize="none")
    model = setup.model.double()
    step = 1e-5
    for layer in setup.layers[:: max(1, len(setup.layers) // 4)]:
        for head in (0, layer.units - 1):
            total = 0.0
            for row in range(3):
                batch = one_row(setup.batches[0], row)
                losses = []
                for sign in (1, -1):
                    gate = torch.ones(layer.units, dtype=torch.float64)
                    gate[head] += sign * step
                    with gated(model, setup.layers, {layer.name: gate}), torch.no_grad():
                        losses.append(_loss64(setup.task, model, batch))
                total += abs(losses[0] - losses[1]) / (2 * step)
            assert found.values[layer.name][head] == pytest.approx(total / 3, rel=2e-3, abs=1e-5)


def _loss64(task, model, batch) -> float:
    logits = task.logits(model, batch).flatten(0, -2)
    return float(
        torch.nn.functional.cross_entropy(
            logits, batch["labels"].flatten(), ignore_index=-100, reduction="sum"
        )
    )


@pytest.mark.parametrize("name", BUILDERS)
def test_taylor_per_token_against_autograd_row_by_row(name: str):
    """Each row alone, without padding, through retained gradients instead of hooks on them."""
    setup = scoring(name)
    found = score("taylor", setup, per="token", normalize="none")
    sums = {layer.name: np.zeros(layer.units) for layer in setup.layers}
    tokens = dict.fromkeys(sums, 0)
    for row in range(3):
        batch = one_row(setup.batches[0], row)
        kept = {}

        def keep(layer, module, inputs, kept=kept):
            inputs[0].retain_grad()
            kept[layer.name] = inputs[0]

        handles = [
            setup.model.get_submodule(x.output).register_forward_pre_hook(
                lambda m, i, x=x, keep=keep: keep(x, m, i)
            )
            for x in setup.layers
        ]
        setup.task.loss(setup.model, batch).backward()
        for handle in handles:
            handle.remove()
        for layer in setup.layers:
            a, g = kept[layer.name].detach(), kept[layer.name].grad
            product = (a * g).numpy().reshape(-1, layer.units, layer.unit_width).sum(-1)
            sums[layer.name] += np.abs(product).sum(0)
            tokens[layer.name] += len(product)
    for layer in setup.layers:
        np.testing.assert_allclose(
            found.values[layer.name], sums[layer.name] / tokens[layer.name], rtol=1e-3, atol=1e-6
        )


def negative_log_likelihood(logits: np.ndarray, row: Batch) -> float:
    shifted = logits - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -log_probabilities[np.arange(len(logits)), row["labels"].numpy().reshape(-1)].sum()


@pytest.mark.parametrize("name", BUILDERS)
def test_fisher_is_the_mean_square_of_the_gates_derivative(name: str):
    """Central differences of the gates of the NumPy model, row by row."""
    setup = scoring(name)
    found = score("fisher", setup, normalize="none")
    models = [(NumpyTransformer(setup.model, row), row) for row in rows_of(setup)]
    ones, step = mask_arrays(setup.mask), 1e-5
    for layer in setup.layers:
        for head in (0, layer.units - 1):
            slopes = [
                negative_log_likelihood(
                    model.logits(with_gate(ones, layer.name, head, 1 + step)), row
                )
                - negative_log_likelihood(
                    model.logits(with_gate(ones, layer.name, head, 1 - step)), row
                )
                for model, row in models
            ]
            expected = np.mean((np.array(slopes) / (2 * step)) ** 2)
            assert found.values[layer.name][head] == pytest.approx(expected, rel=1e-3, abs=1e-7)


def test_batching_does_not_change_scores():
    model = tiny_model("marian")
    batch = labelled_batch(model, rows=5)
    together = score("taylor", scoring("marian", [batch]))
    apart = score("taylor", scoring("marian", [one_row(batch, row) for row in range(5)]))
    for name, values in together.values.items():
        np.testing.assert_allclose(values, apart.values[name], rtol=1e-3)


@pytest.mark.parametrize("units", ["heads", "neurons", None])
def test_layer_normalization_divides_by_the_l2_norm(units: str | None):
    """It is the default where the units are of one sort, but not where heads meet neurons."""
    setup = scoring("bert", units=units)
    plain = score("taylor", setup, normalize="none")
    scaled = score("taylor", setup, normalize="layer")
    for name, values in plain.values.items():
        np.testing.assert_allclose(scaled.values[name], np.array(values) / np.linalg.norm(values))
    usual = plain if units is None else scaled
    found = score("taylor", setup)
    assert (found.values, found.signature) == (usual.values, usual.signature)


@pytest.mark.parametrize("method", ["taylor", "fisher", "relevance", "magnitude"])
def test_scores_of_a_unit_do_not_depend_on_what_else_is_scored(method: str):
    both = score(method, scoring("marian"), normalize="none").values
    for units in ("heads", "neurons"):
        found = score(method, scoring("marian", units=units), normalize="none").values
        for name, values in found.items():
            np.testing.assert_allclose(values, both[name], rtol=1e-4, atol=1e-7)


def test_one_pass_forward_and_one_back_whatever_the_number_of_heads():
    setup = scoring("bert")
    calls = {"forward": 0, "backward": 0}
    setup.model.register_forward_hook(lambda *_: calls.update(forward=calls["forward"] + 1))
    setup.model.classifier.register_full_backward_hook(
        lambda *_: calls.update(backward=calls["backward"] + 1)
    )
    cost = score("taylor", setup).cost
    assert calls == {"forward": 1, "backward": 1}
    assert (cost["forward_passes"], cost["backward_passes"]) == (1, 1)


def test_scoring_leaves_the_model_as_it_was():
    setup = scoring("marian")
    before = {n: (p.clone(), p.requires_grad) for n, p in setup.model.named_parameters()}
    score("taylor", setup)
    for name, parameter in setup.model.named_parameters():
        assert torch.equal(parameter, before[name][0])
        assert parameter.requires_grad == before[name][1]
        assert parameter.grad is None
    assert all(not m._forward_pre_hooks for m in setup.model.modules())


@pytest.mark.parametrize("method", METHODS)
def test_removed_units_do_not_count_when_scored_again(method: str):
    units = "heads" if method == "confidence" else None
    setup = scoring("marian", units=units)
    mask = uneven_mask(setup.layers)
    found = score(method, dataclasses.replace(setup, mask=mask))
    if method == "random":
        assert found.values == score(method, setup).values
        return
    for name, values in found.values.items():
        removed = [v for v, keep in zip(values, mask.keep[name], strict=True) if not keep]
        assert all(value == 0 for value in removed)


@pytest.mark.parametrize("name", BUILDERS)
def test_magnitude_is_the_norm_of_the_output_projections_block(name: str):
    """Four heads of 8 columns, or each column of the projection that ends the feed-forward part."""
    setup = scoring(name)
    found = score("magnitude", setup, normalize="none")
    for layer in setup.layers:
        weight = setup.model.get_submodule(layer.output).weight.detach().numpy()
        size = 8 if layer.is_attention else 1
        expected = [
            np.linalg.norm(weight[:, start : start + size])
            for start in range(0, weight.shape[1], size)
        ]
        np.testing.assert_allclose(found.values[layer.name], expected, rtol=1e-5)


def test_random_scores_are_the_seeds_and_as_large_as_a_unit_is_wide():
    """So that of heads and neurons that compete, both lose the same share."""
    first, again, other = (score("random", scoring("bert", seed=seed)).values for seed in (0, 0, 1))
    assert first == again
    assert first != other
    heads = np.concatenate([v for name, v in first.items() if name.startswith("encoder_self")])
    neurons = np.concatenate([v for name, v in first.items() if name.startswith("encoder_ffn")])
    assert heads.min() >= 0
    assert 4 < heads.max() < 8
    assert neurons.min() >= 0
    assert 0.9 < neurons.max() < 1
    assert neurons.mean() == pytest.approx(0.5, abs=0.1)  # of 144: four standard errors


def test_an_unknown_method_is_an_error_that_lists_those_there_are():
    with raises(UsageError, "method-unknown") as caught:
        METHODS["tailor"]
    assert all(method in str(caught.value) for method in METHODS)


@pytest.mark.parametrize("method", ["taylor", "fisher", "confidence", "ablation", "magnitude"])
def test_scores_that_are_not_finite_are_an_error(method):
    broken = scoring("bert", units="heads")
    with torch.no_grad():
        broken.model.get_submodule(broken.layers[0].output).weight[0, 0] = float("nan")
        broken.model.bert.embeddings.word_embeddings.weight.fill_(float("nan"))
    with raises(InputError, "scores-not-finite"):
        score(method, broken)
