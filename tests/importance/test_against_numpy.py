"""Scores against independent computations: finite differences of gates, autograd by rows, NumPy."""

from __future__ import annotations

import dataclasses
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.activations import ACT2FN

from compressor.errors import InputError, UsageError
from compressor.importance import METHODS
from compressor.model.sublayers import Mask, Scores
from compressor.tasks import Batch
from tests.helpers.errors import raises
from tests.helpers.numpy_transformer import NumpyTransformer, mask_arrays, with_gate
from tests.helpers.stages import masks, rows_of, score, scoring, with_gradients
from tests.helpers.tiny import STACKS, STRUCTURES, uneven_mask


@pytest.mark.parametrize("name", STRUCTURES)
def test_taylor_per_token_against_autograd_row_by_row(name: str):
    """Each row alone, without padding, through retained gradients instead of hooks on them."""
    setup = scoring(name)
    found = score("taylor", setup, per="token", normalize="none")
    sums = {layer.name: np.zeros(layer.units) for layer in setup.layers}
    tokens = dict.fromkeys(sums, 0)
    for row in range(3):
        seen = with_gradients(setup, row)
        for layer in setup.layers:
            a = seen[layer.name][0]
            slices = (-1, layer.units, layer.unit_width)
            product = (a * a.grad).detach().numpy().reshape(slices).sum(-1)
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


@pytest.mark.parametrize("name", STRUCTURES)
def test_taylor_and_fisher_are_of_the_gates_derivative(name: str):
    """d loss / d gate at 1 is sum a_h . dL/da_h: central differences of NumPy's gates, by rows.

    Taylor per example is the mean of their absolute values, Fisher of their squares.
    """
    setup = scoring(name)
    taylor = score("taylor", setup, per="example", normalize="none").values
    fisher = score("fisher", setup, normalize="none").values
    models = [(NumpyTransformer(setup.model, row), row) for row in rows_of(setup)]
    ones, step = mask_arrays(setup.mask), 1e-5
    for layer in setup.layers:
        for unit in (0, layer.units - 1):
            gates = [with_gate(ones, layer.name, unit, gate) for gate in (1 + step, 1 - step)]
            losses = [
                [negative_log_likelihood(model.logits(gate), row) for gate in gates]
                for model, row in models
            ]
            slopes = np.array([higher - lower for higher, lower in losses]) / (2 * step)
            expected = np.abs(slopes).mean(), np.square(slopes).mean()
            found = taylor[layer.name][unit], fisher[layer.name][unit]
            assert found[0] == pytest.approx(expected[0], rel=2e-3, abs=1e-5)
            assert found[1] == pytest.approx(expected[1], rel=1e-3, abs=1e-7)


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


@pytest.mark.parametrize("method", METHODS)
def test_removed_units_do_not_count_when_scored_again(method: str):
    units = "heads" if method == "confidence" else None
    setup = scoring("marian", units=units)
    mask = uneven_mask(setup.layers)
    found = score(method, dataclasses.replace(setup, mask=mask))
    for name, values in found.values.items():
        removed = [v for v, keep in zip(values, mask.keep[name], strict=True) if not keep]
        assert all(value == 0 for value in removed)


@pytest.mark.parametrize("name", STRUCTURES)
def test_magnitude_is_the_norm_of_the_output_projections_block(name: str):
    """Four heads of 8 columns, or each column of the projection that ends the feed-forward part."""
    setup = scoring(name)
    found = score("magnitude", setup, normalize="none")
    for layer in setup.layers:
        weight = setup.model.get_submodule(layer.output).weight.detach().numpy()
        size = 8 if layer.is_attention else 1
        starts = range(0, weight.shape[1], size)
        expected = [np.linalg.norm(weight[:, start : start + size]) for start in starts]
        np.testing.assert_allclose(found.values[layer.name], expected, rtol=1e-5)


def test_random_scores_are_the_seeds_and_as_large_as_a_unit_is_wide():
    """So that of heads and neurons that compete, both lose the same share."""
    first, again, other = (score("random", scoring("bert", seed=seed)).values for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert 4 < max(first["encoder_self.0"] + first["encoder_self.1"]) < 8
    assert 0.9 < max(first["encoder_ffn.0"] + first["encoder_ffn.1"]) < 1


def tokenizer_with(boundaries: set[int]) -> SimpleNamespace:
    """A tokenizer that ends and begins texts with these tokens, up to four."""
    names = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
    return SimpleNamespace(**dict(zip(names, boundaries, strict=False)))


@pytest.mark.parametrize("name", STRUCTURES)
def test_confidence_is_the_mean_largest_attention_weight(name: str):
    """softmax(q k^T / sqrt(d)) in NumPy; two tokens of the source, one of the target excluded."""
    setup = scoring(name, units="heads")
    ids = setup.batches[0]["input_ids"]
    special = {int(ids[0, 0]), int(ids[2, 4])}
    if "decoder_input_ids" in setup.batches[0]:
        special.add(int(setup.batches[0]["decoder_input_ids"][0, 2]))
    for mask in masks(setup):
        options = {"tokenizer": tokenizer_with(special), "mask": mask, "units": "heads"}
        found = score("confidence", scoring(name, **options), normalize="none")
        expected = {layer.name: [] for layer in setup.layers}
        for row in rows_of(setup):
            model = NumpyTransformer(setup.model, row)
            model.logits(mask_arrays(mask))
            words = {
                part: ~np.isin(row[part][0].numpy(), list(special))
                for part in ("input_ids", "decoder_input_ids")
                if part in row
            }
            for layer in setup.layers:
                queries = "input_ids" if layer.kind == "encoder_self" else "decoder_input_ids"
                keys = "decoder_input_ids" if layer.kind == "decoder_self" else "input_ids"
                for query in np.flatnonzero(words[queries]):
                    weights = model.probabilities[layer.name][:, query, words[keys]]
                    if weights.shape[1]:
                        expected[layer.name].append(weights.max(-1))
        for layer in setup.layers:
            kept = np.array(mask.keep[layer.name])
            np.testing.assert_allclose(
                found.values[layer.name], np.mean(expected[layer.name], 0) * kept, rtol=1e-4
            )


def relevances(model: NumpyTransformer, layers, mask: Mask) -> dict[str, np.ndarray]:
    """Relevance per sublayer, [positions, units].

    With probabilities, deviations and activation ratios fixed, logits are affine in one unit's
    gate: the derivative is the difference that closing the gate makes.
    """
    gates = mask_arrays(mask)
    logits = model.logits(gates)
    positions, top = np.arange(len(logits)), logits.argmax(-1)

    def without(name: str, unit: int) -> np.ndarray:
        return model.logits(with_gate(gates, name, unit, 0), frozen=True)[positions, top]

    whole = logits[positions, top]
    return {
        x.name: np.stack([whole - without(x.name, unit) for unit in range(x.units)], 1)
        for x in layers
    }


def shares(relevance: np.ndarray) -> np.ndarray:
    """Of the absolute values in each row."""
    total = np.abs(relevance).sum(-1, keepdims=True)
    return np.abs(relevance) / np.where(total > 0, total, 1)


def by_row(setup, mask: Mask, *activation: str) -> list[dict[str, np.ndarray]]:
    """Relevances of the NumPy models, a row each."""
    models = [NumpyTransformer(setup.model, row, *activation) for row in rows_of(setup)]
    return [relevances(model, setup.layers, mask) for model in models]


def require_shares(found: Scores, expected_of: list[dict[str, np.ndarray]], per: str) -> None:
    """Compare scores with the mean shares of relevances that were computed row by row."""
    for name, values in found.values.items():
        rows = [row[name] for row in expected_of]
        if per == "example":
            rows = [row.sum(0, keepdims=True) for row in rows]
        expected = np.concatenate([shares(row) for row in rows]).mean(0)
        np.testing.assert_allclose(values, expected, rtol=2e-3, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRUCTURES)
def test_relevance_is_the_contribution_in_the_linear_part_of_the_model(name: str):
    setup = scoring(name)
    mask = uneven_mask(setup.layers)
    rows = by_row(setup, mask)
    for per in ("token", "example"):
        found = score("relevance", scoring(name, mask=mask), per=per, normalize="none")
        require_shares(found, rows, per)


@pytest.mark.parametrize("activation", ["gelu_new", "swish", "relu"])
def test_relevance_passes_through_every_activation(activation: str):
    """gelu_new is made of elementary functions, swish is a module, relu is zero in places."""
    setup = scoring("marian", units="heads")
    for module in setup.model.modules():
        if hasattr(module, "activation_fn"):
            module.activation_fn = ACT2FN[activation]
    found = score("relevance", setup, normalize="none")
    require_shares(found, by_row(setup, setup.mask, activation), "token")


def ablations(setup) -> int:
    """Passes without something: one a head, and one for each 32 neurons of a sublayer."""
    counts = setup.mask.counts()
    return sum(counts[x.name] if x.is_attention else -(-counts[x.name] // 32) for x in setup.layers)


class Stopped(Exception):
    pass


def state_of(model):
    """All that a method may change on the way and must leave as it was."""
    return (
        {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()},
        [
            (x.training, len(x._forward_hooks), len(x._forward_pre_hooks), "forward" in vars(x))
            for x in model.modules()
        ],
        model.config._attn_implementation,
    )


def stop_after(model, passes: int) -> None:
    """Raise from the inside of a further forward pass, after all attention."""
    left = iter(range(passes))

    def stop(*_) -> None:
        if next(left, None) is None:
            raise Stopped

    last = "lm_head" if model.config.is_encoder_decoder else "classifier"
    model.get_submodule(last).register_forward_hook(stop)


CASES = [(method, name, False) for method in METHODS for name in STACKS]
CASES += [(method, "marian", True) for method in METHODS if METHODS[method].needs_rows]


@pytest.mark.parametrize(("method", "name", "fails"), CASES)
def test_every_method_scores_every_unit_and_leaves_the_model_alone(method, name, fails):
    setup = scoring(name, units="heads" if method == "confidence" else None)
    if fails:
        stop_after(setup.model, ablations(setup) if method == "ablation" else 0)
    setup.model.train()
    first = setup.model.get_submodule(setup.layers[0].block)
    first.eval()
    for parameter in first.parameters():
        parameter.requires_grad_(False)
    weights = {name: value.clone() for name, value in setup.model.state_dict().items()}
    before = state_of(setup.model)
    if fails:
        with pytest.raises(Stopped):
            score(method, setup)
    else:
        found = score(method, setup)
        assert {n: len(v) for n, v in found.values.items()} == setup.mask.counts()
        assert np.isfinite(np.concatenate(list(found.values.values()))).all()
        if method == "ablation":
            assert found.cost["forward_passes"] == 1 + ablations(setup)
    assert all(torch.equal(weights[key], x) for key, x in setup.model.state_dict().items())
    assert state_of(setup.model) == before


def broken(units: str | None):
    """A model whose scores are no numbers."""
    setup = scoring("bert", units=units)
    with torch.no_grad():
        setup.model.get_submodule(setup.layers[0].output).weight[0, 0] = float("nan")
        setup.model.bert.embeddings.word_embeddings.weight.fill_(float("nan"))
    return setup


@pytest.mark.parametrize(
    ("method", "setup", "error", "id"),
    [
        ("confidence", partial(scoring, "bert"), UsageError, "method-for-heads-alone"),
        ("tailor", partial(scoring, "bert"), UsageError, "method-unknown"),
        *(
            (x, partial(broken, "heads"), InputError, "scores-not-finite")
            for x in ("taylor", "confidence", "ablation", "magnitude")
        ),
        ("second-order", partial(broken, None), InputError, "activations-not-finite"),
    ],
)
def test_what_cannot_be_scored(method: str, setup, error, id: str):
    with raises(error, id):
        score(method, setup())
