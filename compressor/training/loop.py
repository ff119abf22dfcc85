"""The training loop.

Batches of rows of similar length in random order, AdamW or Muon, warm-up and linear decay,
validation after every epoch, early stopping, and a file from which an interrupted training is
resumed. All randomness of a step depends on the seed and the step's number, so a resumed training
equals an uninterrupted one (on the CPU; a GPU sums some gradients in no fixed order). With several
ranks each computes its rows of every batch, and gradients are summed, so the steps are those of one
process.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from operator import methodcaller
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compressor import parallel
from compressor.errors import InputError
from compressor.parallel import sharding
from compressor.tasks import Batch
from compressor.tasks.batching import most_tokens, parts_of_rank
from compressor.training.data import Batches, TrainingRows
from compressor.training.optimizer import MuonAdamW, clip_gradients
from compressor.training.state import Trained, UnusableState, _header, _read, write_state

SAVE_SECONDS = 60.0  # between two saves within an epoch
_MOST_SAVING = 0.05  # share of the time spent on saving
_LARGEST_GRADIENT = 1.0  # norm that gradients are clipped to
UNREAD_STEPS = {"cpu": 1, "cuda": 32}  # between two reads of the losses, which wait for the GPU


class Problem(ABC):
    """Base of everything that is trained: its parameters, training loss and validation loss."""

    @abstractmethod
    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups of AdamW, each with its learning rate `lr`.

        With `decay: False` the rate stays constant after the warm-up; otherwise it falls linearly
        to zero. `clip` is the largest norm of the group's gradients, 1 by default. A group with
        `muon`, a precision, is trained by Muon instead.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All tensors that training changes, by name; they are saved, and restored in place."""

    @abstractmethod
    def loss(self, batch: Batch, progress: float, whole: Batch | None = None) -> Tensor:
        """Mean loss of one batch, or what a part of a batch adds to it.

        Args:
            batch: on the device.
            progress: completed share of all steps.
            whole: the batch that `batch` is a part of; the losses of all parts add up to its own.

        Returns:
            A scalar to differentiate.
        """

    @abstractmethod
    def validate(self, progress: float) -> float | None:
        """Validation loss over the rows of all ranks, lower is better.

        Args:
            progress: completed share of all steps.

        Returns:
            None while the parameters are not ready; such an epoch is never the best one, and does
            not count for early stopping.
        """

    def tables(self) -> Collection[Tensor]:
        """Embedding tables of which a step changes only the rows that have a gradient."""
        return ()

    def take_step(self) -> None:
        """Called after the gradients of a batch are summed over ranks, before parameters change."""
        return

    def status(self) -> str:
        """A few words on the present state, for the line after an epoch; empty for nothing."""
        return ""


@dataclass(frozen=True)
class Schedule:
    """How long to train, and how fast."""

    epochs: int
    batch_size: int = 32  # rows per step
    warmup: float = 0.1  # share of all steps over which learning rates rise from zero
    weight_decay: float = 0.01
    patience: int = 2  # training stops after so many validated epochs in a row without a better one
    steps: int | None = None  # at most, which may end an epoch early; None: those of the epochs
    # Time limit; learning rates then fall with the time, so runs are not reproducible.
    seconds: float | None = None


def train(
    problem: Problem,
    data: TrainingRows,
    schedule: Schedule,
    seed: int = 0,
    state: Path | None = None,
    report: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Trained:
    """Train until the last epoch or early stopping, and restore the best parameters.

    Args:
        problem: what is trained; its tensors change in place.
        data: the rows of all ranks.
        schedule: how long, how fast.
        seed: of the order of rows, of dropout and of gates. The caller's random state is kept.
        state: file to resume from if it exists, and to save to.
        report: called with a line after every epoch, and if the file cannot be resumed from.
        progress: called with (steps done, total steps).

    Raises:
        InputError: a loss is not finite.
    """
    run = _Run(problem, data, schedule, seed, state)
    try:
        run.resume()
    except UnusableState as error:
        report(f"  {state} cannot be resumed from ({error}); training starts again")
    cuda = [torch.device(data.device)] if data.device.startswith("cuda") else []
    with torch.random.fork_rng(devices=cuda):
        while run.done < 1 and not run.trained.stopped_early:
            epoch, done = divmod(run.trained.steps, run.per_epoch)
            began = run.trained.steps
            for batch in islice(run.batches.of_epoch(epoch, skip=done), run.total - began):
                run.step(batch)
                progress(int(run.done * run.total), run.total)
                if run.done >= 1:
                    break
            run.end_epoch(run.trained.steps - began)
            last = run.trained.history[-1]
            epochs = -(-run.total // run.per_epoch)
            parts = [f"  epoch {last['epoch']} of {epochs}: loss {last['loss']:.4f}"]
            if last["validation"] is not None:
                parts.append(f"held-out {last['validation']:.4f}")
            if last["status"]:
                parts.append(last["status"])
            if run.trained.stopped_early:
                parts.append("no better for a while, stopping early")
            report(", ".join(parts))
    with torch.no_grad():
        tensors = problem.tensors()
        for name, value in run.best.items():
            tensors[name].copy_(value)
    return run.trained


class _Run:
    """A running training: the optimizer, the best tensors so far, and the state file.

    Args:
        problem: what is trained.
        data: the rows of all ranks.
        schedule: how long, how fast.
        seed: of the order of rows and of every step.
        state: file to resume from and to save to, if any.
    """

    def __init__(
        self,
        problem: Problem,
        data: TrainingRows,
        schedule: Schedule,
        seed: int,
        state: Path | None,
    ) -> None:
        self.problem = problem
        self.data = data
        self.schedule = schedule
        self.seed = seed
        self.state = state
        self.trained = Trained()
        self.most_tokens = most_tokens(data.model, data.device)
        self.optimizer = MuonAdamW(
            [{"decay": True, **g} for g in problem.groups()],
            problem.tables(),
            weight_decay=schedule.weight_decay,
            fused=True,  # one pass over weights, gradients and moments instead of ten
        )
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.best: dict[str, Tensor] = {}
        self.batches = Batches(data, schedule.batch_size, seed)
        self.per_epoch = len(self.batches)
        self.total = self.per_epoch * schedule.epochs
        if schedule.steps is not None:
            self.total = min(self.total, schedule.steps)
        self._unread: list[Tensor] = []  # the losses of the last steps, float64, on the device
        self.most_unread = UNREAD_STEPS[torch.device(data.device).type]
        self._loss = 0.0  # sum of the losses of this epoch that were read, of this rank's rows
        self._saved, self._saving = time.monotonic(), 0.0

    @property
    def done(self) -> float:
        """Share of all steps, or of the time if that is more; 1 at the end."""
        limit = self.schedule.seconds
        spent = 0.0 if limit is None else min(1.0, self.trained.seconds / limit)
        return max(self.trained.steps / self.total, spent)

    def step(self, batch: Batch) -> None:
        """One optimizer step; waits for the GPU where losses are read, every some steps."""
        start = time.monotonic()
        steps = self.trained.steps
        done = self.done
        warmup = self.schedule.warmup
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            if done < warmup:
                factor = (done + 1 / self.total) / (warmup + 1 / self.total)
            else:
                factor = (1 - done) / (1 - warmup) if group["decay"] else 1.0
            group["lr"] = rate * factor
        self.optimizer.zero_grad()
        loss = torch.zeros((), dtype=torch.float64, device=self.data.device)
        for part in parts_of_rank(batch, self.most_tokens):
            torch.manual_seed((self.seed << 32) + steps)  # so that each part draws the same gates
            partial = self.problem.loss(part.to(self.data.device), done, batch)
            if part.spare:
                partial = 0.0 * partial
            loss += partial.detach()
            partial.backward()
        parallel.add_up_gradients(p for g in self.optimizer.param_groups for p in g["params"])
        self.problem.take_step()
        for group in self.optimizer.param_groups:
            clip_gradients(group["params"], group.get("clip", _LARGEST_GRADIENT))
        self.optimizer.step()
        self._unread.append(loss)
        self.trained = replace(self.trained, steps=steps + 1)
        if len(self._unread) >= self.most_unread:
            self.read_losses()  # waits for the GPU, which counts, too
        self._count(start)
        # The end of an epoch is saved after the validation.
        if self.trained.steps % self.per_epoch != 0 and self.done < 1:
            self.save_if_due(SAVE_SECONDS)

    def read_losses(self) -> None:
        """Add up the losses of the steps since the last read; InputError if one is not finite."""
        if not self._unread:
            return
        losses = torch.stack(self._unread).tolist()
        first = self.trained.steps - len(losses)
        self._unread = []
        for step, loss in enumerate(losses, first):
            if not math.isfinite(loss):
                raise InputError(
                    f"the training loss is {loss} at step {step}; check what the "
                    "checkpoint answers in PyTorch, or lower --learning-rate",
                    id="loss-not-finite",
                )
            self._loss += loss

    def _count(self, start: float) -> None:
        """Add the time since `start` to that of the training."""
        seconds = self.trained.seconds + time.monotonic() - start
        if self.schedule.seconds is not None:
            seconds = parallel.agree(seconds)  # learning rates depend on it
        self.trained = replace(self.trained, seconds=seconds)

    def end_epoch(self, steps: int) -> None:
        """Validate after `steps` of the epoch; keep the parameters if they are the best; save."""
        start, last = time.monotonic(), self.done >= 1
        self.read_losses()
        loss, self._loss = parallel.total(self._loss) / steps, 0.0
        parallel.equalize(self.problem.tensors().values())  # processors may round differently
        value = parallel.agree(self.problem.validate(self.done))
        self._count(start)
        trained, epoch = self.trained, -(-self.trained.steps // self.per_epoch)
        if value is not None and (trained.best is None or value < trained.best):
            trained = replace(trained, best=value, best_epoch=epoch, waited=0)
            self.best = {n: t.detach().clone() for n, t in self.problem.tensors().items()}
        elif value is not None:
            trained = replace(trained, waited=trained.waited + 1)
        entry = {
            "epoch": epoch,
            "loss": loss,
            "validation": value,
            "status": self.problem.status(),
        }
        self.trained = replace(
            trained,
            stopped_early=trained.waited >= self.schedule.patience and not last,
            history=(*trained.history, entry),
        )
        if self.trained.stopped_early or last:
            self.save()
        else:
            self.save_if_due(0.0)

    def save_if_due(self, seconds: float) -> None:
        """Save if the last save was `seconds` ago, and saving takes a small share of the time."""
        since = time.monotonic() - self._saved
        due = since > seconds and since >= self._saving / _MOST_SAVING
        if parallel.agree(due) if parallel.shards() else due:
            self.save()

    def save(self) -> None:
        """Write the state atomically; readers see the whole file or none.

        It is the same file whether or not weights are sharded; if they are, all ranks call this
        together.
        """
        if self.state is None or not (parallel.is_main() or parallel.shards()):
            return
        self.read_losses()  # raises before weights after a loss that is not finite are saved
        start = time.monotonic()
        moments = self.optimizer.state_dict()["state"]
        tensors = {f"now.{n}": t.detach() for n, t in self.problem.tensors().items()}
        tensors |= {f"best.{n}": t for n, t in self.best.items()}
        tensors |= {f"adam.{i}.{n}": t for i, own in moments.items() for n, t in own.items()}
        write_state(self.state, self.trained, tensors)
        self._saved = time.monotonic()
        self._saving = self._saved - start

    @torch.no_grad()
    def resume(self) -> None:
        """Resume from the file, if it exists.

        Raises:
            UnusableState: it cannot be read or is of another training; nothing has changed.
        """
        path, tensors = self.state, self.problem.tensors()
        if path is None or not parallel.on_main(path.exists):
            return
        trained, shapes = _read(path, _header)

        def saved(owner: str) -> Iterator[tuple[str, Tensor]]:
            for name in shapes:
                if name.startswith(owner):
                    yield name.removeprefix(owner), _read(path, methodcaller("get_tensor", name))

        here = {f"now.{name}": tensor.shape for name, tensor in tensors.items()}
        if here != {name: shape for name, shape in shapes.items() if name.startswith("now.")}:
            raise UnusableState("it is of another training")
        now, best = (
            {name: sharding.part_of(x, tensors[name]) for name, x in saved(owner)}
            for owner in ("now.", "best.")
        )
        parameters = (p for group in self.optimizer.param_groups for p in group["params"])
        moments = {
            number: {
                name: sharding.part_of(x, parameter) if x.shape else x
                for name, x in saved(f"adam.{number}.")
            }
            for number, parameter in enumerate(parameters)
        }
        for name, tensor in tensors.items():
            tensor.copy_(now[name])
        state = {number: own for number, own in moments.items() if own}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.trained, self.best = trained, best
