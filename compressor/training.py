"""The training loop that learned masks and distillation share.

Shuffled batches of similar length, AdamW, warm-up and linear decay, validation after every epoch,
early stopping, and a file from which an interrupted training is resumed. All randomness of a step
follows from the seed and the step's number, so a resumed training equals an uninterrupted one (on
the CPU; a GPU adds up some gradients in no fixed order).
"""

from __future__ import annotations

import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compressor.errors import InputError
from compressor.tasks import Batch, Example, Task
from compressor.tasks.batching import most_tokens, within_tokens

SAVE_SECONDS = 60.0  # between two saves within an epoch
_MOST_SAVING = 0.05  # share of the time spent on saving
HELD_OUT = 8  # rows at least
_LARGEST_GRADIENT = 1.0  # norm that gradients are clipped to


class Problem(ABC):
    """What is trained: its parameters, their loss, and how good they are by now."""

    @abstractmethod
    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups of AdamW, each with its learning rate `lr`.

        With `decay: False` the rate stays constant after the warm-up; otherwise it falls linearly
        to zero. `clip` is the norm that the group's gradients are clipped to, 1 by default.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All tensors that training changes, by name; they are saved, and restored in place."""

    @abstractmethod
    def loss(self, batch: Batch, progress: float) -> Tensor:
        """Mean loss of one batch; `progress` is the share of all steps that are done."""

    @abstractmethod
    def validate(self, progress: float) -> float | None:
        """How good the parameters are, lower being better; None while that cannot be told yet.

        Such an epoch is not kept as the best one, and does not count for early stopping.
        """

    def take_step(self) -> None:
        """Called after the gradients of a batch are computed, before the parameters change."""
        return

    def status(self) -> str:
        """More about the current state, for the line after an epoch; empty for nothing."""
        return ""


@dataclass(frozen=True)
class Schedule:
    """How long to train and how fast.

    Args:
        batch_size: rows per step.
        warmup: share of all steps over which learning rates rise from zero.
        patience: training stops after this many validated epochs in a row without a better one.
    """

    epochs: int
    batch_size: int = 32
    warmup: float = 0.1
    weight_decay: float = 0.01
    patience: int = 2


@dataclass(frozen=True)
class Trained:
    """How a training went.

    Args:
        steps: how many were done.
        best: the lowest validation; None if nothing was validated.
        best_epoch: the epoch that had it, from 1; 0 for none.
        waited: validated epochs since the best one.
        stopped_early: whether that was more than the schedule's patience.
        history: of each epoch its number, mean loss, validation and status.
    """

    steps: int = 0
    best: float | None = None
    best_epoch: int = 0
    waited: int = 0
    stopped_early: bool = False
    history: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Data:
    """The rows to train on, and how they become batches.

    Args:
        model: tells the padding, see `Task.batches`; it is not run.
    """

    examples: Sequence[Example]
    task: Task
    model: nn.Module
    device: str = "cpu"


def require_enough(rows: int, least: int = 2 * HELD_OUT) -> None:
    """Raise `InputError` if there are too few rows to hold some out and train on the others."""
    if rows < least:
        raise InputError(
            f"{rows} calibration rows are too few to train on; give at least {least}",
            id="too-few-rows-to-train",
        )


def hold_out(
    examples: Sequence[Example], seed: int, share: float = 0.1, least: int = HELD_OUT
) -> tuple[list[Example], list[Example]]:
    """Rows to train on and rows to validate on, drawn by the seed.

    Raises:
        InputError: too few rows for both.
    """
    count = max(least, round(share * len(examples)))
    require_enough(len(examples), 2 * count)
    order = torch.randperm(len(examples), generator=_generator(seed, 0)).tolist()
    held = set(order[:count])
    rows = range(len(examples))
    return [examples[i] for i in rows if i not in held], [examples[i] for i in sorted(held)]


def train(
    problem: Problem,
    data: Data,
    schedule: Schedule,
    seed: int = 0,
    state: Path | None = None,
    report: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Trained:
    """Train until the last epoch or until it gets no better; the best parameters are left in place.

    Args:
        state: file to resume from if it exists, and to save to (safetensors).
        report: called with a line after every epoch, and if the state cannot be resumed from.
        progress: called with (steps done, steps in all).

    Raises:
        InputError: the loss is not finite, or `state` is that of another training.
    """
    run = _Run(problem, data, schedule, seed, state)
    try:
        run.resume()
    except _UnusableState as error:
        report(f"  {state} cannot be resumed from ({error}); training starts again")
    cuda = [torch.device(data.device)] if data.device.startswith("cuda") else []
    with torch.random.fork_rng(devices=cuda):
        while run.trained.steps < run.total and not run.trained.stopped_early:
            epoch, done = divmod(run.trained.steps, run.per_epoch)
            losses = []
            for batch in run.batches(epoch)[done:]:
                losses.append(run.step(batch))
                progress(run.trained.steps, run.total)
            run.end_epoch(sum(losses) / len(losses))
            report(_line(run.trained, schedule.epochs))
    run.restore_best()
    return run.trained


class _UnusableState(Exception):
    """A saved state that is cut, garbage, or of another version."""


class _Run:
    """One training under way: the optimizer, the best tensors so far, and the file."""

    def __init__(
        self, problem: Problem, data: Data, schedule: Schedule, seed: int, state: Path | None
    ) -> None:
        self.problem, self.data, self.schedule, self.seed = problem, data, schedule, seed
        self.state, self.trained = state, Trained()
        self.most_tokens = most_tokens(data.model)
        self.optimizer = torch.optim.AdamW(
            [{"decay": True, **g} for g in problem.groups()],
            weight_decay=schedule.weight_decay,
            fused=True,  # one pass over weights, gradients and moments instead of ten
        )
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.best: dict[str, Tensor] = {}
        self.per_epoch = len(self.batches(0))
        self.total = self.per_epoch * schedule.epochs
        self._saved, self._saving = time.monotonic(), 0.0

    def batches(self, epoch: int) -> list[Batch]:
        """The batches of an epoch, shuffled so that other rows share a batch in every epoch."""
        generator = _generator(self.seed, epoch + 1)
        order = torch.randperm(len(self.data.examples), generator=generator).tolist()
        batches = self.data.task.batches(
            [self.data.examples[i] for i in order],
            self.data.model,
            batch_tokens=None,
            batch_size=self.schedule.batch_size,
        )
        order = torch.randperm(len(batches), generator=generator).tolist()
        return [batches[i] for i in order]

    def step(self, batch: Batch) -> float:
        """Change the parameters once; the mean loss of the batch."""
        steps = self.trained.steps
        done = steps / self.total
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self._factor(done, group["decay"])
        self.optimizer.zero_grad()
        loss = 0.0
        terms = self.data.task.loss_terms(batch)
        for part in within_tokens(batch, self.most_tokens):
            torch.manual_seed((self.seed << 32) + steps)  # the same gates are drawn for each part
            share = self.data.task.loss_terms(part) / terms
            partial = self.problem.loss(part.to(self.data.device), done) * share
            loss += float(partial.detach())
            if not math.isfinite(loss):
                raise InputError(
                    f"the training loss is {loss} at step {steps}; check the checkpoint with "
                    "`compress evaluate`, or lower --learning-rate",
                    id="loss-not-finite",
                )
            partial.backward()
        self.problem.take_step()
        for group in self.optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], group.get("clip", _LARGEST_GRADIENT))
        self.optimizer.step()
        self.trained = replace(self.trained, steps=steps + 1)
        if self.trained.steps % self.per_epoch != 0:  # otherwise saved after the validation
            self.save_if_due(SAVE_SECONDS)
        return loss

    def _factor(self, done: float, decay: bool) -> float:
        """What the learning rate is multiplied by after the share `done` of all steps."""
        warmup = self.schedule.warmup
        if done < warmup:
            return (done + 1 / self.total) / (warmup + 1 / self.total)
        return (1 - done) / (1 - warmup) if decay else 1.0

    def end_epoch(self, loss: float) -> None:
        """Validate, keep the parameters if they are the best so far, and save."""
        trained, epoch = self.trained, self.trained.steps // self.per_epoch
        value = self.problem.validate(trained.steps / self.total)
        if value is not None and (trained.best is None or value < trained.best):
            trained = replace(trained, best=value, best_epoch=epoch, waited=0)
            self.best = {n: t.detach().clone() for n, t in self.problem.tensors().items()}
        elif value is not None:
            trained = replace(trained, waited=trained.waited + 1)
        last = trained.steps == self.total
        entry = {
            "epoch": epoch, "loss": loss, "validation": value, "status": self.problem.status()
        }  # fmt: skip
        self.trained = replace(
            trained,
            stopped_early=trained.waited >= self.schedule.patience and not last,
            history=(*trained.history, entry),
        )
        if self.trained.stopped_early or last:
            self.save()
        else:
            self.save_if_due(0.0)

    @torch.no_grad()
    def restore_best(self) -> None:
        tensors = self.problem.tensors()
        for name, value in self.best.items():
            tensors[name].copy_(value)

    def save_if_due(self, seconds: float) -> None:
        """Save if the last time was `seconds` ago, and saving would not take much of the time."""
        since = time.monotonic() - self._saved
        if since > seconds and since >= self._saving / _MOST_SAVING:
            self.save()

    def save(self) -> None:
        """Write the state at once: readers see the whole file or none."""
        if self.state is None:
            return
        start = time.monotonic()
        from safetensors.torch import save_file

        moments = self.optimizer.state_dict()["state"]
        tensors = {f"now.{n}": t.detach() for n, t in self.problem.tensors().items()}
        tensors |= {f"best.{n}": t for n, t in self.best.items()}
        tensors |= {f"adam.{i}.{n}": t for i, found in moments.items() for n, t in found.items()}
        tensors = _unshared({n: t.to("cpu").contiguous() for n, t in tensors.items()})
        temporary = self.state.with_suffix(".tmp")
        self.state.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary, {"trained": json.dumps(vars(self.trained))})
        os.replace(temporary, self.state)
        self._saved = time.monotonic()
        self._saving = self._saved - start

    @torch.no_grad()
    def resume(self) -> None:
        """Go on from the file, if there is one.

        Raises:
            InputError: its tensors are those of another training.
            _UnusableState: it cannot be read; nothing has changed.
        """
        if self.state is None or not self.state.exists():
            return
        trained, saved = _read_state(self.state)
        tensors, now = self.problem.tensors(), saved.pop("now", {})
        if _shapes(now) != _shapes(tensors):
            raise InputError(
                f"{self.state} is of another training; use another --output",
                id="training-state-of-another-training",
            )
        best, state = saved.pop("best", {}), self.optimizer.state_dict()
        if best and _shapes(best) != _shapes(tensors):
            raise _UnusableState("the best parameters do not fit")
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        moments = {int(number): found for number, found in saved.items()}
        if not moments.keys() <= set(range(len(parameters))) or any(
            moment.shape not in ((), parameters[number].shape)
            for number, found in moments.items()
            for moment in found.values()
        ):
            raise _UnusableState("the optimizer's moments do not fit")
        for name, tensor in tensors.items():
            tensor.copy_(now[name])
        self.optimizer.load_state_dict({**state, "state": moments})
        self.trained, self.best = trained, best


def _read_state(path: Path) -> tuple[Trained, dict[str | int, dict[str, Tensor]]]:
    """How far the training came, and its tensors: `now`, `best`, and moments by parameter number.

    Raises:
        _UnusableState: the file is cut, garbage, or of another version.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            fields = json.loads(file.metadata()["trained"])
            trained = Trained(**fields | {"history": tuple(fields["history"])})
            tensors: dict[str | int, dict[str, Tensor]] = {}
            for key in file.keys():  # noqa: SIM118 - not a mapping
                # `now.NAME`, `best.NAME`, or `adam.NUMBER.MOMENT` with the number of a parameter
                group, name = key.removeprefix("adam.").split(".", 1)
                owner = group if group in ("now", "best") else int(group)
                tensors.setdefault(owner, {})[name] = file.get_tensor(key)
    except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
        raise _UnusableState(str(error)) from error
    return trained, tensors


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with copies of those that share memory, which safetensors does not write."""
    seen: set[int] = set()
    unshared = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        unshared[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return unshared


def _line(trained: Trained, epochs: int) -> str:
    last = trained.history[-1]
    parts = [f"  epoch {last['epoch']} of {epochs}: loss {last['loss']:.4f}"]
    if last["validation"] is not None:
        parts.append(f"held-out {last['validation']:.4f}")
    if last["status"]:
        parts.append(last["status"])
    if trained.stopped_early:
        parts.append("no better for a while, stopping")
    return ", ".join(parts)


def _generator(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed << 20) + number)
