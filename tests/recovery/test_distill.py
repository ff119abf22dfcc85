"""Distillation: its loss against SciPy, and what training with it does to tiny models."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from compressor.errors import InputError, UsageError
from compressor.recovery import Recovery, parse_recovery, recover
from compressor.recovery.distill import _Imitation
from compressor.tasks import Example
from tests.helpers.stages import job
from tests.helpers.tiny import BUILDERS


def divergence(setup: Recovery, rows: list[Example]) -> float:
    """Mean KL(dense || pruned) by SciPy's log-softmax in double precision."""
    total, terms = 0.0, 0
    for batch in setup.task.batches(rows, setup.dense):
        with torch.no_grad():
            logits = [setup.task.logits(m, batch) for m in (setup.dense, setup.pruned)]
        if logits[0].dim() == 3:
            logits = [found[batch["labels"] != -100] for found in logits]
        wanted, found = (log_softmax(x.double().numpy(), axis=-1) for x in logits)
        total += float((np.exp(wanted) * (wanted - found)).sum())
        terms += len(wanted)
    return total / terms


@pytest.mark.parametrize("name", ["marian", "bert"])
def test_the_loss_is_the_divergence_from_the_dense_model(name: str):
    setup = job(name)
    held = setup.examples[:20]
    problem = _Imitation(setup, setup.task.batches(held, setup.dense))
    assert problem.validate(0.0) == pytest.approx(divergence(setup, held), rel=1e-4)
    (batch,) = setup.task.batches(held, setup.dense)
    assert float(problem.loss(batch, 0.0).detach()) == pytest.approx(problem.validate(0.0))


@pytest.mark.parametrize("name", BUILDERS)
def test_the_pruned_model_comes_closer_to_the_dense_one(name: str):
    """On the rows it is trained on, most of the divergence must go in 8 epochs."""
    setup = job(name, epochs=8)
    dense = copy.deepcopy(setup.dense.state_dict())
    before = divergence(setup, setup.examples)
    text = recover("distill", setup)
    assert divergence(setup, setup.examples) < 0.8 * before
    assert text.startswith(
        "distill: fine-tuned with the dense model as teacher on 40 rows at learning rate 0.001,"
    )
    assert all(torch.equal(v, dense[k]) for k, v in setup.dense.state_dict().items())


def test_reconstruction_first_is_better_than_distillation_alone():
    alone, both = job("marian", epochs=2), job("marian", epochs=2)
    recover("distill", alone)
    text = recover("reconstruct+distill", both)
    assert divergence(both, both.examples) < divergence(alone, alone.examples)
    assert text.startswith("reconstruct: ")
    assert "; then distill: " in text


def test_reconstruction_does_not_see_the_rows_that_distillation_judges_itself_on(monkeypatch):
    from compressor.recovery import reconstruct
    from compressor.training import hold_out

    seen: set[int] = set()
    monkeypatch.setattr(
        reconstruct,
        "recover",
        lambda job: seen.update(r for b in job.batches for r in b.rows) or "reconstruct: noted",
    )
    setup = job("bert", epochs=1)
    learn, held = hold_out(setup.examples, setup.seed)
    assert recover("reconstruct+distill", setup).startswith("reconstruct: noted; then distill")
    assert seen == {example.row for example in learn}
    assert not seen & {example.row for example in held}


def test_what_does_not_help_is_taken_back():
    """Steps that are far too large make it worse everywhere; the weights stay as they were."""
    setup = dataclasses.replace(job("bert", epochs=2), learning_rate=30.0)
    before = copy.deepcopy(setup.pruned.state_dict())
    assert recover("distill", setup).startswith("distill: nothing gained on 8 held-out rows")
    assert all(torch.equal(v, before[k]) for k, v in setup.pruned.state_dict().items())


def test_the_same_seed_gives_the_same_weights_and_another_other_ones():
    first, same, other = job("marian", epochs=1), job("marian", epochs=1), job("marian", epochs=1)
    recover("distill", first)
    recover("distill", same)
    recover("distill", dataclasses.replace(other, seed=1))
    states = [setup.pruned.state_dict() for setup in (first, same, other)]
    assert all(torch.equal(v, states[1][k]) for k, v in states[0].items())
    assert any(not torch.equal(v, states[2][k]) for k, v in states[0].items())


def test_methods_are_joined_by_plus():
    assert parse_recovery("none") == []
    assert parse_recovery("reconstruct+distill") == ["reconstruct", "distill"]
    for text in ("distill+distill", "none+distill"):
        with pytest.raises(UsageError, match="name each method once"):
            parse_recovery(text)
    with pytest.raises(UsageError, match="no recovery method 'magic'"):
        parse_recovery("reconstruct+magic")


def test_too_few_rows_are_refused():
    setup = job("bert")
    few = dataclasses.replace(setup, examples=setup.examples[:12])
    with pytest.raises(InputError, match="12 calibration rows are too few to train on"):
        recover("distill", few)
