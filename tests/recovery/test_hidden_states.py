"""Hidden states that distillation matches, against `output_hidden_states` of transformers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from compressor.model.surgery import prune
from compressor.recovery import RecoveryJob
from compressor.recovery.distillation import Distillation
from compressor.recovery.teacher import find_blocks, record_outputs, states_of
from compressor.tasks import Batch
from tests.helpers.stages import job, repair
from tests.helpers.tiny import STACKS, TRANSLATORS, nothing_left_mask


def without_final_norms(model: nn.Module) -> None:
    """mBART's last hidden states in the output are normalized; layers return what comes before."""
    for stack in ("encoder", "decoder"):
        part = getattr(model.model, stack)
        if hasattr(part, "layer_norm"):
            part.layer_norm = nn.Identity()


def hidden_states(model: nn.Module, batch: Batch) -> list[np.ndarray]:
    """After every layer, by transformers itself: [real tokens, width] in double precision."""
    with torch.no_grad():
        output = model(**batch.inputs(), output_hidden_states=True)
    source = batch["attention_mask"].bool()
    if not model.config.is_encoder_decoder:
        stacks = [(output.hidden_states, source)]
    else:
        target = batch["labels"] != -100
        stacks = [
            (output.encoder_hidden_states, source), (output.decoder_hidden_states, target)
        ]  # fmt: skip
    return [state[real].double().numpy() for states, real in stacks for state in states[1:]]


def setup(name: str) -> RecoveryJob:
    found = job(name)
    if name == "mbart":
        without_final_norms(found.dense)
        without_final_norms(found.pruned)
    return found


@pytest.mark.parametrize("name", STACKS)
def test_blocks_give_the_residual_stream_after_every_layer(name: str):
    found = setup(name)
    blocks = find_blocks(found.layers)
    assert len(blocks) == (5 if name in TRANSLATORS else 3)
    (batch,) = found.task.batches(found.examples, found.dense, batch_tokens=None)
    for model in (found.dense, found.pruned):
        with torch.no_grad(), record_outputs(model, blocks) as seen:
            found.task.logits(model, batch)
        states = states_of(seen, blocks, found.task, batch)
        for state, expected in zip(states, hidden_states(model, batch), strict=True):
            np.testing.assert_allclose(state.double().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("name", STACKS)
def test_the_loss_adds_the_difference_in_units_of_variance(name: str):
    """Computed by NumPy from `output_hidden_states`; the variance is that of the held-out rows."""
    found = setup(name)
    held = found.task.batches(found.examples[:20], found.dense, batch_tokens=None)
    (batch,) = found.task.batches(found.examples[20:], found.dense, batch_tokens=None)
    plain = Distillation(found, found.pruned, held, 1e-3, hidden=0.0).loss(batch, 0.0)
    both = Distillation(found, found.pruned, held, 1e-3, hidden=2.5).loss(batch, 0.0)
    units = [state.var(axis=0).mean() for state in hidden_states(found.dense, held[0])]
    differences = [
        np.square(a - b).mean() / unit
        for a, b, unit in zip(
            hidden_states(found.dense, batch), hidden_states(found.pruned, batch), units,
            strict=True,
        )
    ]  # fmt: skip
    added = float((both - plain).detach())
    # What the dense model says is kept in bfloat16.
    assert added == pytest.approx(2.5 * np.mean(differences), rel=1e-3)
    assert added > 0.1


@pytest.mark.parametrize(
    ("name", "left"), [*((name, "uneven") for name in STACKS), ("bert", "none")]
)
def test_matching_them_brings_the_pruned_model_closer(name: str, left: str):
    """To the dense model, in predictions and in hidden states; with no heads left at all, too."""
    found = job(name)
    if left == "none":
        empty = prune(found.dense, found.layers, nothing_left_mask(found.layers))
        found = dataclasses.replace(found, pruned=empty)
    held = found.task.batches(found.examples, found.dense)

    def judged(model: nn.Module) -> tuple[float, float]:
        problem = Distillation(found, model, held, 1e-3, hidden=1.0)
        divergence = problem.validate(0.0)
        total = float(problem.loss(held[0], 0.0).detach())
        problem.blocks = []
        return divergence, total - float(problem.loss(held[0], 0.0).detach())

    options = {"learning_rate": 1e-3, "epochs": 8, "hidden": 1.0}
    repaired = repair(found, distill=options)
    before, after = judged(found.pruned), judged(repaired.model)
    most = 0.9 if left == "uneven" else 1.0  # three layers without attention cannot do all
    assert after[0] < most * before[0]
    assert after[1] < most * before[1]
