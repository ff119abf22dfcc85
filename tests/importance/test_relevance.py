"""Relevance against the linear part of NumPy models, one row at a time."""

from __future__ import annotations

import numpy as np
import pytest
from transformers.activations import ACT2FN

from compressor.model.sublayers import Mask, Scores
from tests.helpers.numpy_transformer import NumpyTransformer, mask_arrays, with_gate
from tests.helpers.stages import rows_of, score, scoring
from tests.helpers.tiny import STRUCTURES, uneven_mask


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
