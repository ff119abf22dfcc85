"""A step of distillation on a GPU asks for nothing that the GPU has yet to compute.

Tried on the CPU: tensors that were moved to the device, and all that is computed from them, count
as the GPU's, and operations whose results the host needs at once are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from compressor.model import modes
from compressor.recovery import distillation
from compressor.recovery.distillation import Distillation
from compressor.tasks import batching
from compressor.training import loop, muon, optimizer
from compressor.training.data import TrainingRows, batches_of_rank, hold_out
from compressor.training.loop import Schedule
from compressor.training.optimizer import embedding_tables, sparse_gradients
from tests.helpers.stages import job

aten = torch.ops.aten
NEEDED_AT_ONCE = {
    aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten._coalesce,
    aten._to_sparse, aten.unique_consecutive, aten.unique_dim, aten.repeat_interleave, aten.equal,
    aten.bincount,
}  # fmt: skip


class Waited(Exception):
    """The host would have waited."""


class Watched(TorchDispatchMode):
    """Refuses to wait for tensors on the device."""

    def __init__(self, on_device: WeakTensorKeyDictionary) -> None:
        super().__init__()
        self.on_device = on_device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if any(x in self.on_device for x in given):
            by_mask = func.overloadpacket in (aten.index, aten.index_put, aten.index_put_) and any(
                x.dtype == torch.bool for x in given[1:]
            )
            if by_mask or func.overloadpacket in NEEDED_AT_ONCE:
                raise Waited(func)
            found = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(found):
                if isinstance(tensor, Tensor):
                    self.on_device[tensor] = True
            return found
        return func(*args, **(kwargs or {}))


@contextmanager
def as_on_a_gpu(run: loop._Run, problem: Distillation) -> Iterator[None]:
    on_device = WeakTensorKeyDictionary()
    models = (problem.student, problem.job.dense)
    lessons = problem.teacher.kept.values()
    states = run.optimizer.state.values()
    known = [
        *(p for model in models for p in (*model.parameters(), *model.buffers())),
        *(tensor for lesson in lessons for tensor in (lesson.read, *lesson.hidden)),
        *(tensor for state in states for name, tensor in state.items() if name != "step"),
    ]
    for tensor in known:
        on_device[tensor] = True

    def moved_to(device: str, tensor: Tensor) -> Tensor:
        moved = tensor.clone()
        on_device[moved] = True
        return moved

    with pytest.MonkeyPatch.context() as patch, Watched(on_device):
        patch.setattr(batching, "moved_to", moved_to)
        yield


@pytest.mark.parametrize(("name", "hidden", "fit"), [
    ("marian", 0.0, True), ("marian", 1.0, False), ("bert", 1.0, True), ("t5", 0.0, True),
])  # fmt: skip
def test_a_step_waits_for_nothing(name: str, hidden: float, fit: bool, monkeypatch):
    monkeypatch.setattr(optimizer, "_counts_rows", lambda table: False)
    monkeypatch.setattr(muon, "_stacks_pay", lambda matrix: True)
    monkeypatch.setattr(distillation, "masks_unread", lambda device: modes.masks_unread("cuda"))
    monkeypatch.setattr(distillation, "by_muon", lambda job: True)
    setup = job(name)
    learn, held = hold_out(setup.examples, 0)
    batches = batches_of_rank(setup.task, held, setup.dense)
    problem = Distillation(setup, setup.pruned, batches, 1e-3, hidden)
    if not fit:  # every second row is computed in every step
        problem.teacher.kept = {r: x for r, x in problem.teacher.kept.items() if r % 2}
    rows = TrainingRows(learn, setup.task, setup.dense)
    run = loop._Run(problem, rows, Schedule(2, batch_size=16), 0, None)
    run.most_unread = 99
    first, *others = run.batches.of_epoch(0)
    with sparse_gradients(embedding_tables(problem.student)):
        run.step(first)
        with as_on_a_gpu(run, problem):
            for batch in others:
                run.step(batch)
    with as_on_a_gpu(run, problem), pytest.raises(Waited):
        float(next(problem.student.parameters()).detach().sum())
    before = run._loss
    run.read_losses()
    assert run._loss > before
