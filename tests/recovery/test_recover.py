"""What a recovery changes and what it leaves alone, and what it refuses."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from compressor.errors import InputError, UsageError
from compressor.model.architectures import find_sublayers
from compressor.model.sublayers import Mask
from tests.helpers.errors import raises
from tests.helpers.stages import job, repair
from tests.helpers.tiny import tiny_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("methods", [("reconstruct",), ("distill",), ("reconstruct", "distill")])
def test_the_models_handed_in_stay_as_they_are(methods: tuple[str, ...]):
    """And share what is not changed: embeddings are most of a translator's weights."""
    setup = job("marian", rows=48)
    setup.pruned.train()
    before = [copy.deepcopy(model.state_dict()) for model in (setup.dense, setup.pruned)]
    flags = [p.requires_grad for p in setup.pruned.parameters()]
    options = {"reconstruct": {}, "distill": {"epochs": 1, "learning_rate": 1e-3}}
    recovered = repair(setup, **{method: options[method] for method in methods}).model
    for model in (setup.dense, setup.pruned, recovered):
        assert not any(x._forward_hooks or x._forward_pre_hooks for x in model.modules())
    for model, state in zip((setup.dense, setup.pruned), before, strict=True):
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(module.training for module in setup.pruned.modules())
    assert [p.requires_grad for p in setup.pruned.parameters()] == flags
    assert any(not torch.equal(v, before[1][k]) for k, v in recovered.state_dict().items())
    assert recovered.lm_head.weight is recovered.model.shared.weight  # tied, as in the pruned one
    shares = recovered.model.shared.weight is setup.pruned.model.shared.weight
    assert shares == (methods == ("reconstruct",))


def test_nothing_is_touched_where_nothing_is_missing():
    """The removed units' columns of the output projections are zero: the cut changes nothing."""
    model = tiny_model("bert")
    with torch.no_grad():
        for layer in find_sublayers(model):
            unit = slice(layer.unit_width, 2 * layer.unit_width)
            model.get_submodule(layer.output).weight[:, unit] = 0
    setup = job("bert", lambda x: Mask.full(x).without((y.name, 1) for y in x), model=model)
    setup = dataclasses.replace(setup, dense=copy.deepcopy(setup.pruned))
    recovered = repair(setup, reconstruct={})
    assert recovered.text == "reconstruct: nothing to improve in 6 projections"
    before = setup.pruned.state_dict()
    assert all(torch.equal(v, before[k]) for k, v in recovered.model.state_dict().items())


@pytest.mark.parametrize(
    ("methods", "rows", "error", "id", "piece"),
    [
        ({"distil": {}}, 5, UsageError, "recovery-unknown", "reconstruct"),
        ({"reconstruct": {}}, 0, UsageError, "calibration-missing", "--recover reconstruct"),
        ({"distill": {}}, 12, InputError, "too-few-rows-to-train", "12"),
        ({"reconstruct": {}}, 5, InputError, "activations-not-finite", "encoder_self.1"),
    ],
)
def test_what_cannot_be_recovered(methods, rows, error, id, piece):
    setup = job("bert", rows=5)
    setup = dataclasses.replace(setup, examples=(3 * setup.examples)[:rows])
    if id == "activations-not-finite":
        with torch.no_grad():
            setup.pruned.get_submodule(setup.layers[1].inputs["value"]).weight.fill_(torch.nan)
    with raises(error, id) as caught:
        repair(setup, **methods)
    assert piece in str(caught.value)
