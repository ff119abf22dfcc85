"""The teacher of distillation: what it kept equals what the dense model says, at one pass."""

from __future__ import annotations

import pytest
import torch

from compressor.recovery.teacher import Teacher
from compressor.tasks import TASKS
from tests.helpers.batches import examples
from tests.helpers.stages import job, repair
from tests.helpers.tiny import BUILDERS, TRANSLATORS, tiny_model


def batches_of(name: str, count: int, size: int) -> tuple:
    model = tiny_model(name)
    task = TASKS["translation" if name in TRANSLATORS else "classification"]
    rows = examples(name, count)
    return model, task, task.batches(rows, model, batch_tokens=None, batch_size=size)


def said(model, task, batch) -> torch.Tensor:
    with torch.no_grad():
        logits = task.logits(model, batch)[task.term_mask(batch)]
    return logits.double().log_softmax(-1).float()


@pytest.mark.parametrize("name", BUILDERS)
def test_rows_it_has_read_are_what_the_model_says_in_any_batch(name: str):
    """Kept from batches of 16 rows, asked in batches of 5; a bias of the vocabulary counts."""
    model, task, read = batches_of(name, 48, 16)
    if name in TRANSLATORS:
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    teacher = Teacher(model, task, read)
    assert set(teacher.kept) == set(range(48))
    _, _, asked = batches_of(name, 48, 5)
    model.forward = None  # whatever is asked now is not computed
    found = [teacher.log_probabilities(batch) for batch in asked]
    del model.forward
    for batch, answers in zip(asked, found, strict=True):
        torch.testing.assert_close(answers, said(model, task, batch), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["marian", "bert"])
def test_what_it_keeps_takes_no_more_room_than_the_model(name: str, monkeypatch):
    """A model of a few numbers: some rows are kept, the others are computed, right all the same."""
    model, task, read = batches_of(name, 48, 16)
    width = model.config.d_model if name in TRANSLATORS else model.config.num_labels
    few = [torch.zeros(30 * width)]
    with monkeypatch.context() as patched:
        patched.setattr(model, "parameters", lambda: iter(few))
        teacher = Teacher(model, task, read)
    assert 0 < len(teacher.kept) < 48
    assert sum(kept.bytes for kept in teacher.kept.values()) <= 4 * 30 * width
    for batch in read:
        expected = said(model, task, batch)
        found = teacher.log_probabilities(batch)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_the_dense_model_is_run_once_however_many_epochs():
    setup = job("marian")
    rows = 0

    def count(model, args, inputs) -> None:
        nonlocal rows
        rows += len(inputs["input_ids"])

    setup.dense.register_forward_pre_hook(count, with_kwargs=True)
    repair(setup, distill={"epochs": 4, "hidden": 0})
    assert rows == len(setup.examples)
