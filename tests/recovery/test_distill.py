"""Distillation: its loss against SciPy, and what training with it does to tiny models."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from compressor.recovery import Recovered, least_squares
from compressor.recovery.distillation import Distillation
from compressor.training.data import hold_out
from tests.helpers.reconstruction import divergence
from tests.helpers.stages import job, repair
from tests.helpers.tiny import STACKS

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


@pytest.mark.parametrize("name", STACKS)
def test_the_pruned_model_comes_closer_to_the_dense_one(name: str):
    """On the rows it is trained on, most of the divergence must go in 8 epochs."""
    setup = job(name)
    before = divergence(setup, setup.pruned, setup.examples)
    recovered = repair(setup, distill={**OPTIONS, "epochs": 8})
    assert divergence(setup, recovered.model, setup.examples) < 0.8 * before
    assert recovered.text.startswith(
        "distill: fine-tuned with the dense model as teacher on 40 rows at learning rate 0.001,"
    )


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


def test_reconstruction_first_is_better_than_distillation_alone():
    setup = job("marian")
    alone = repair(setup, distill={**OPTIONS, "epochs": 2}).model
    both = repair(setup, reconstruct={}, distill={**OPTIONS, "epochs": 2})
    after = divergence(setup, both.model, setup.examples)
    assert after < divergence(setup, alone, setup.examples)
    assert both.text.startswith("reconstruct: ")
    assert "; then distill: " in both.text


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
