"""Distillation: its loss against SciPy, and what any recovery changes and leaves alone."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from compressor.errors import InputError, UsageError
from compressor.model.architectures import find_sublayers
from compressor.model.sublayers import Mask
from compressor.recovery import Recovered, least_squares
from compressor.recovery.distillation import Distillation
from compressor.training.data import hold_out
from tests.helpers.errors import raises
from tests.helpers.reconstruction import divergence
from tests.helpers.stages import job, repair
from tests.helpers.tiny import tiny_model

OPTIONS = {"learning_rate": 1e-3, "hidden": 0.0}


@pytest.mark.parametrize("name", ["marian", "bert"])
def test_the_loss_is_the_divergence_from_the_dense_model(name: str):
    setup = job(name)
    held = setup.examples[:20]
    problem = Distillation(setup, setup.pruned, setup.task.batches(held, setup.dense), 1e-3)
    expected = divergence(setup, setup.pruned, held)
    assert problem.validate(0.0) == pytest.approx(expected, rel=1e-4)
    (batch,) = setup.task.batches(held, setup.dense)
    assert float(problem.loss(batch, 0.0).detach()) == pytest.approx(problem.validate(0.0))


@pytest.mark.parametrize("name", ["marian", "bert"])
def test_products_in_bfloat16_bring_it_as_close(name: str):
    """Linear layers compute in bfloat16, attention in float32; weights and judging are as ever."""
    setup = job(name)
    seen: dict[str, set[torch.dtype]] = {"linear": set(), "attention": set()}
    problem = Distillation(
        setup, setup.pruned, setup.task.batches(setup.examples, setup.dense), 1e-3, 0.0, "bf16"
    )
    layer = next(x for x in setup.pruned.modules() if isinstance(x, nn.Linear))
    (batch,) = setup.task.batches(setup.examples[:8], setup.dense)

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is nn.functional.scaled_dot_product_attention:
                seen["attention"] |= {x.dtype for x in args[:3]}
            return func(*args, **(kwargs or {}))

    handle = layer.register_forward_hook(lambda *x: seen["linear"].add(x[-1].dtype))
    with Watch():
        problem.loss(batch, 0.0).backward()
    handle.remove()
    assert seen == {"linear": {torch.bfloat16}, "attention": {torch.float32}}
    assert {p.dtype for p in setup.pruned.parameters()} == {torch.float32}

    wide = repair(setup, distill={**OPTIONS, "epochs": 8}).model
    recovered = repair(setup, distill={**OPTIONS, "epochs": 8, "precision": "bf16"})
    assert " at learning rate 0.001 with products in bf16, best" in recovered.text
    before = divergence(setup, setup.pruned, setup.examples)
    gained = before - divergence(setup, wide, setup.examples)
    assert before - divergence(setup, recovered.model, setup.examples) > 0.9 * gained


def test_reconstruction_does_not_see_the_rows_that_distillation_judges_itself_on(monkeypatch):
    seen: set[int] = set()
    monkeypatch.setattr(
        least_squares,
        "reconstruct",
        lambda _, job: seen.update(e.row for e in job.examples) or Recovered(job.pruned, "noted"),
    )
    setup = job("bert")
    learn, held = hold_out(setup.examples, setup.seed)
    text = repair(setup, reconstruct={}, distill={**OPTIONS, "epochs": 1}).text
    assert text.startswith("noted; then distill")
    assert seen == {example.row for example in learn}
    assert not seen & {example.row for example in held}


def test_what_does_not_help_is_taken_back():
    """Steps that are far too large make it worse everywhere; the pruned model is the result."""
    setup = job("bert")
    recovered = repair(setup, distill={**OPTIONS, "epochs": 2, "learning_rate": 3.0})
    assert recovered.text.startswith("distill: nothing gained on 8 held-out rows")
    assert recovered.model is setup.pruned


def test_the_same_seed_gives_the_same_weights_and_another_other_ones():
    setups = job("marian"), job("marian"), job("marian", seed=1)
    options = {**OPTIONS, "epochs": 1}
    states = [repair(setup, distill=options).model.state_dict() for setup in setups]
    assert all(torch.equal(v, states[1][k]) for k, v in states[0].items())
    assert any(not torch.equal(v, states[2][k]) for k, v in states[0].items())


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
