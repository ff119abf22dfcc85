"""The teacher of distillation: its cached outputs, and the hidden states that are matched.

Outputs against ordinary passes of the dense model, hidden states against transformers.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from compressor.model.sublayers import Sublayer, by_layer
from compressor.model.surgery import prune
from compressor.recovery import RecoveryJob
from compressor.recovery import teacher as teacher_module
from compressor.recovery.distillation import Distillation
from compressor.recovery.teacher import Teacher, outputs_of
from compressor.tasks import Batch
from tests.helpers.stages import job, repair
from tests.helpers.tiny import STACKS, TRANSLATORS, nothing_left_mask


def without_final_norms(name: str) -> RecoveryJob:
    """mBART's last hidden states in the output are normalized; layers return what comes before."""
    setup = job(name)
    for model in (setup.dense, setup.pruned) if name == "mbart" else ():
        for stack in (model.model.encoder, model.model.decoder):
            stack.layer_norm = nn.Identity()
    return setup


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


@pytest.mark.parametrize("name", STACKS)
def test_the_loss_adds_the_difference_in_units_of_variance(name: str):
    """Computed by NumPy from `output_hidden_states`; the variance is that of the held-out rows."""
    setup = without_final_norms(name)
    held = setup.task.batches(setup.examples[:20], setup.dense, batch_tokens=None)
    (batch,) = setup.task.batches(setup.examples[20:], setup.dense, batch_tokens=None)
    plain = Distillation(setup, setup.pruned, held, 1e-3, hidden=0.0).loss(batch, 0.0)
    both = Distillation(setup, setup.pruned, held, 1e-3, hidden=2.5).loss(batch, 0.0)
    units = [state.var(axis=0).mean() for state in hidden_states(setup.dense, held[0])]
    differences = [
        np.square(a - b).mean() / unit
        for a, b, unit in zip(
            hidden_states(setup.dense, batch), hidden_states(setup.pruned, batch), units,
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
    setup = job(name)
    if left == "none":
        empty = prune(setup.dense, setup.layers, nothing_left_mask(setup.layers))
        setup = dataclasses.replace(setup, pruned=empty)
    held = setup.task.batches(setup.examples, setup.dense)

    def judged(model: nn.Module) -> tuple[float, float]:
        problem = Distillation(setup, model, held, 1e-3, hidden=1.0)
        divergence = problem.validate(0.0)
        total = float(problem.loss(held[0], 0.0).detach())
        problem.blocks = []
        return divergence, total - float(problem.loss(held[0], 0.0).detach())

    options = {"learning_rate": 1e-3, "epochs": 8, "hidden": 1.0}
    repaired = repair(setup, distill=options)
    assert repaired.text.startswith(
        "distill: fine-tuned with the dense model as teacher on 40 rows at learning rate 0.001,"
    )
    before, after = judged(setup.pruned), judged(repaired.model)
    most = 0.9 if left == "uneven" else 1.0  # three layers without attention cannot do all
    assert after[0] < most * before[0]
    assert after[1] < most * before[1]


def batches_of(setup: RecoveryJob, size: int) -> list[Batch]:
    return setup.task.batches(setup.examples, setup.dense, batch_tokens=None, batch_size=size)


def said(setup: RecoveryJob, blocks: list[Sublayer], batch: Batch) -> list[torch.Tensor]:
    """Log-probabilities, and the hidden states after each block, from one ordinary pass."""
    with torch.no_grad():
        logits, states = outputs_of(setup.dense, setup.task, batch, blocks)
    answers = logits.double().log_softmax(-1).float()
    return [answers, *states]


def require_answers(teacher: Teacher, batch: Batch, expected: list[torch.Tensor]) -> None:
    """Hidden states are kept in bfloat16, which has eight bits, a translator's last in float16."""
    answers, hidden = teacher.outputs(batch)
    off = 5e-5 if teacher.projection is None else 2e-3
    torch.testing.assert_close(answers, expected[0], atol=off, rtol=1e-4)
    if teacher.projection is not None:
        lost = (expected[0].exp() * (expected[0] - answers)).sum(-1)
        assert lost.abs().max() < 1e-5  # divergence, nats
    for found, wanted in zip(hidden, expected[1:], strict=True):
        torch.testing.assert_close(found.float(), wanted, atol=5e-5, rtol=2**-8)


@pytest.mark.parametrize(
    ("name", "matching"), [*((name, True) for name in STACKS), ("marian", False), ("bert", False)]
)
def test_rows_it_has_read_are_what_the_model_says_in_any_batch(
    name: str, matching: bool, monkeypatch
):
    """Kept from batches of 16 rows, asked in batches of 5; a bias of the vocabulary counts.

    Of a model of a few numbers some rows are kept, and the others are computed.
    """
    setup = job(name)
    model, read = setup.dense, batches_of(setup, 16)
    if name in TRANSLATORS:
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    blocks = [x[0] for x in by_layer(setup.layers).values()] if matching else []
    asked = batches_of(setup, 5)
    expected = [said(setup, blocks, batch) for batch in asked]
    width = model.config.d_model if name in TRANSLATORS else model.config.num_labels
    few = torch.zeros(6000 if matching else 30 * width)
    with monkeypatch.context() as patched:
        patched.setattr(teacher_module, "LEAST_ROOM", 0)
        patched.setattr(model, "parameters", lambda: iter([few]))
        small = Teacher(model, setup.task, read, blocks)
    assert 0 < len(small.kept) < 48
    kept = [x for lesson in small.kept.values() for x in (lesson.read, *lesson.hidden)]
    memory = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}
    assert sum(memory.values()) <= 4 * len(few)
    for batch, wanted in zip(asked, expected, strict=True):
        require_answers(small, batch, wanted)

    teacher = Teacher(model, setup.task, read, blocks)
    assert set(teacher.kept) == set(range(48))
    model.forward = None  # whatever is asked now is not computed
    for batch, wanted in zip(asked, expected, strict=True):
        require_answers(teacher, batch, wanted)
