"""What holds for every method, and for the NumPy models that scores are compared with."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from compressor.importance import METHODS
from tests.helpers.batches import labelled_batch, one_row
from tests.helpers.numpy_transformer import NumpyTransformer
from tests.helpers.stages import rows_of, score, scoring
from tests.helpers.tiny import STACKS, tiny_model


def ablations(setup) -> int:
    """Passes without something: one a head, and one for each 32 neurons of a sublayer."""
    counts = setup.mask.counts()
    return sum(counts[x.name] if x.is_attention else -(-counts[x.name] // 32) for x in setup.layers)


@pytest.mark.parametrize("name", STACKS)
def test_the_numpy_model_is_the_model(name: str):
    setup = scoring(name)
    for row in rows_of(setup):
        expected = setup.task.logits(setup.model, row).detach().numpy().reshape(-1)
        actual = NumpyTransformer(setup.model, row).logits().reshape(-1)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


class Stopped(Exception):
    pass


def state_of(model):
    return (
        {name: value.clone() for name, value in model.state_dict().items()},
        {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()},
        {
            name: (
                module.training,
                len(module._forward_hooks),
                len(module._forward_pre_hooks),
                "forward" in vars(module),
            )
            for name, module in model.named_modules()
        },
        model.config._attn_implementation,
    )


def stop_at_pass(model, number: int) -> None:
    """Raise from the inside of a forward pass, after all attention."""
    passes = iter(range(1, 1000))

    def stop(*_) -> None:
        if next(passes) == number:
            raise Stopped

    last = "lm_head" if model.config.is_encoder_decoder else "classifier"
    model.get_submodule(last).register_forward_hook(stop)


CASES = [(method, name, False) for method in METHODS for name in STACKS]
CASES += [(method, "marian", True) for method in METHODS if METHODS[method].needs_rows]


@pytest.mark.parametrize(("method", "name", "fails"), CASES)
def test_every_method_scores_every_unit_and_leaves_the_model_alone(method, name, fails):
    setup = scoring(name, units="heads" if method == "confidence" else None)
    if fails:
        stop_at_pass(setup.model, 1 + ablations(setup) if method == "ablation" else 1)
    setup.model.train()
    first = setup.model.get_submodule(setup.layers[0].block)
    first.eval()
    for parameter in first.parameters():
        parameter.requires_grad_(False)
    weights, gradients, modules, implementation = state_of(setup.model)
    if fails:
        with pytest.raises(Stopped):
            score(method, setup)
    else:
        found = score(method, setup)
        assert {n: len(v) for n, v in found.values.items()} == setup.mask.counts()
        assert np.isfinite(np.concatenate(list(found.values.values()))).all()
    after = state_of(setup.model)
    assert all(torch.equal(weights[key], after[0][key]) for key in weights)
    assert (gradients, modules, implementation) == after[1:]


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *product(
            ["fisher", "ablation", "confidence", "relevance"],
            ["marian", "bert"],
        ),
        ("taylor", "marian"),
        ("second-order", "marian"),
    ],
)
def test_padding_and_batching_do_not_change_scores(method: str, name: str):
    batch = labelled_batch(tiny_model(name), rows=5)
    plain = {"normalize": "none"} if "normalize" in METHODS[method].model_fields else {}
    units = "heads" if method == "confidence" else None
    together = score(method, scoring(name, [batch], units), **plain)
    rows = [one_row(batch, row) for row in range(5)]
    apart = score(method, scoring(name, rows, units), **plain)
    for layer, values in together.values.items():
        np.testing.assert_allclose(values, apart.values[layer], rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "option", "other"),
    [
        ("taylor", "per", "example"),
        ("relevance", "per", "example"),
        ("taylor", "normalize", "none"),
    ],
)
def test_an_option_changes_scores_and_signature(method: str, option: str, other: str):
    setup = scoring("marian", units="heads")
    usual, changed = score(method, setup), score(method, setup, **{option: other})
    assert usual.values != changed.values
    assert f"|{option}:{other}" in changed.signature
    assert f"|{option}:{other}" not in usual.signature
