"""What holds for every method, and for the NumPy models that scores are compared with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compressor.errors import InputError, UsageError
from compressor.importance import METHODS
from tests.helpers.errors import raises
from tests.helpers.numpy_transformer import NumpyTransformer
from tests.helpers.stages import rows_of, score, scoring
from tests.helpers.tiny import STACKS


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
    """All that a method may change on the way and must leave as it was."""
    return (
        {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()},
        [
            (x.training, len(x._forward_hooks), len(x._forward_pre_hooks), "forward" in vars(x))
            for x in model.modules()
        ],
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


def test_options_are_in_the_signature():
    setup = scoring("marian", units="heads")
    signature = score("taylor", setup, per="example", normalize="none").signature
    assert signature == "taylor|per:example|normalize:none"
    assert score("taylor", setup).signature == "taylor|per:token|normalize:layer"


@pytest.mark.parametrize(
    ("method", "options", "id"),
    [
        ("confidence", {}, "method-for-heads-alone"),
        ("tailor", {}, "method-unknown"),
    ],
)
def test_methods_that_cannot_score(method: str, options: dict, id: str):
    with raises(UsageError, id) as caught:
        score(method, scoring("bert"), **options)
    assert id != "method-unknown" or all(name in str(caught.value) for name in METHODS)


@pytest.mark.parametrize("method", ["taylor", "confidence", "ablation", "magnitude"])
def test_scores_that_are_not_finite_are_an_error(method: str):
    broken = scoring("bert", units="heads")
    with torch.no_grad():
        broken.model.get_submodule(broken.layers[0].output).weight[0, 0] = float("nan")
        broken.model.bert.embeddings.word_embeddings.weight.fill_(float("nan"))
    with raises(InputError, "scores-not-finite"):
        score(method, broken)
