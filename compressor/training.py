"""One training loop for learned masks and for distillation.

Shuffled batches of similar length, AdamW, warm-up and decay, validation after every epoch, early
stop, and a file from which a stopped training goes on. All that is random in a step follows from
the seed and the step's number, so a training that went on equals one that was never stopped (on
the CPU; some gradients of a GPU are sums in any order).
"""

from __future__ import annotations

import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compressor.errors import InputError
from compressor.tasks import Batch, Example, Task
from compressor.tasks.batching import most_tokens

SAVE_SECONDS = 60.0
_SAVING_SHARE = 0.05  # of the time, at most
HELD_OUT = 8  # rows at least
_LARGEST_GRADIENT = 1.0


class Problem(ABC):
    """What is trained: parameters, a loss, and how good it is by now."""

    @abstractmethod
    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups of AdamW, each with its `lr`; `decay: False` keeps its rate constant
        after the warm-up, otherwise it falls linearly to zero."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, by name; saved, and restored in place."""

    @abstractmethod
    def loss(self, batch: Batch, progress: float) -> Tensor:
        """Mean loss of one batch; `progress` is the share of all steps that are done."""

    @abstractmethod
    def validate(self, progress: float) -> float | None:
        """A number to make small; None while models are not comparable yet (the best one is
        then not kept, and nothing stops early)."""

    def take_step(self) -> None:
        """Called when the gradients of a whole batch are there, before the parameters change."""
        return

    def status(self) -> str:
        """What to tell beside the loss."""
        return ""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast.

    Args:
        warmup: share of all steps over which learning rates rise from zero.
        patience: validated epochs in a row without a better validation after which it stops.
    """

    epochs: int
    batch_size: int = 32
    warmup: float = 0.1
    weight_decay: float = 0.01
    patience: int = 2


@dataclass
class Trained:
    """How a training went.

    `history` has an entry per epoch: loss, validation, status; `waited` counts the epochs that were
    validated since the best one.
    """

    steps: int = 0
    best: float | None = None
    best_epoch: int = 0
    waited: int = 0
    stopped_early: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Data:
    """The rows to train on, and how they become batches.

    Args:
        model: says what padding is; see `task.batches`.
    """

    examples: Sequence[Example]
    task: Task
    model: nn.Module
    device: str = "cpu"


def require_enough(rows: int, least: int = 2 * HELD_OUT) -> None:
    """Raise `InputError` if there are too few rows to hold some out and train on the others."""
    if rows < least:
        raise InputError(f"{rows} calibration rows are too few to train on; give at least {least}")


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
    """Train until the last epoch or until it gets no better, and leave the best found in place.

    Args:
        state: file to go on from if it is there, and to save to (safetensors).
        report: called with a line after every epoch.
        progress: called with (steps done, steps in all).

    Raises:
        InputError: the loss is not finite, or `state` is of another training.
    """
    run = _Run(problem, data, schedule, seed, state)
    trained = run.resume()
    with torch.random.fork_rng(devices=_cuda_devices(data.device)):
        while trained.steps < run.total and not trained.stopped_early:
            epoch = trained.steps // run.per_epoch
            losses = []
            for batch in run.batches(epoch)[trained.steps % run.per_epoch :]:
                losses.append(run.step(batch, trained))
                progress(trained.steps, run.total)
            run.end_epoch(trained, sum(losses) / len(losses))
            report(_line(trained, schedule.epochs))
    run.restore_best()
    return trained


def within_tokens(batch: Batch, most: int) -> list[Batch]:
    """The rows of a batch in parts of at most `most` padded tokens (or one row).

    What a step needs of memory is that of one part: with long rows and a large vocabulary the
    logits of a whole batch, and their gradients, would be gigabytes.
    """
    widest = max(tensor.shape[1] for tensor in batch.values() if tensor.dim() > 1)
    size = max(1, most // widest)
    if size >= len(batch.rows):
        return [batch]
    return [
        Batch({n: t[i : i + size] for n, t in batch.items()}, batch.rows[i : i + size])
        for i in range(0, len(batch.rows), size)
    ]


class _Run:
    """The state of one training: optimizer, best tensors, and the file."""

    def __init__(
        self, problem: Problem, data: Data, schedule: Schedule, seed: int, state: Path | None
    ) -> None:
        self.problem, self.data, self.schedule, self.seed = problem, data, schedule, seed
        self.state = state
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
        """The batches of an epoch; rows of one length meet others in every epoch."""
        generator = _generator(self.seed, epoch + 1)
        order = torch.randperm(len(self.data.examples), generator=generator).tolist()
        made = self.data.task.batches(
            [self.data.examples[i] for i in order],
            self.data.model,
            batch_tokens=None,
            batch_size=self.schedule.batch_size,
        )
        return [made[i] for i in torch.randperm(len(made), generator=generator).tolist()]

    def step(self, batch: Batch, trained: Trained) -> float:
        done = trained.steps / self.total
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self._factor(done, group["decay"])
        self.optimizer.zero_grad()
        loss = 0.0
        terms = self.data.task.loss_terms(batch)
        for part in within_tokens(batch, self.most_tokens):
            torch.manual_seed((self.seed << 32) + trained.steps)  # every part sees the same gates
            share = self.data.task.loss_terms(part) / terms
            partial = self.problem.loss(part.to(self.data.device), done) * share
            loss += float(partial.detach())
            if not math.isfinite(loss):
                raise InputError(
                    f"the training loss is {loss} at step {trained.steps}; check the checkpoint "
                    "with `compress evaluate`, or lower --learning-rate"
                )
            partial.backward()
        self.problem.take_step()
        for group in self.optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], group.get("clip", _LARGEST_GRADIENT))
        self.optimizer.step()
        trained.steps += 1
        if trained.steps % self.per_epoch != 0:  # the end of an epoch saves by itself
            self.save_if_due(trained, SAVE_SECONDS)
        return loss

    def _factor(self, done: float, decay: bool) -> float:
        warmup = self.schedule.warmup
        if done < warmup:
            return (done + 1 / self.total) / (warmup + 1 / self.total)
        return (1 - done) / (1 - warmup) if decay else 1.0

    def end_epoch(self, trained: Trained, loss: float) -> None:
        done = trained.steps / self.total
        value = self.problem.validate(done)
        epoch = trained.steps // self.per_epoch
        status = self.problem.status()
        trained.history.append(
            {"epoch": epoch, "loss": loss, "validation": value, "status": status}
        )
        if value is not None and (trained.best is None or value < trained.best):
            trained.best, trained.best_epoch, trained.waited = value, epoch, 0
            self.best = {n: t.detach().clone() for n, t in self.problem.tensors().items()}
        elif value is not None:
            trained.waited += 1
        impatient = trained.waited >= self.schedule.patience
        trained.stopped_early = impatient and trained.steps < self.total
        if trained.stopped_early or trained.steps == self.total:
            self.save(trained)
        else:
            self.save_if_due(trained, 0.0)

    @torch.no_grad()
    def restore_best(self) -> None:
        tensors = self.problem.tensors()
        for name, value in self.best.items():
            tensors[name].copy_(value)

    def save_if_due(self, trained: Trained, seconds: float) -> None:
        """Save if the last time is long enough ago, also against what saving takes."""
        since = time.monotonic() - self._saved
        if since > seconds and since >= self._saving / _SAVING_SHARE:
            self.save(trained)

    def save(self, trained: Trained) -> None:
        if self.state is None:
            return
        began = time.monotonic()
        from safetensors.torch import save_file

        moments = self.optimizer.state_dict()["state"]
        tensors = {f"now.{n}": t.detach() for n, t in self.problem.tensors().items()}
        tensors |= {f"best.{n}": t for n, t in self.best.items()}
        tensors |= {f"adam.{i}.{n}": t for i, found in moments.items() for n, t in found.items()}
        tensors = _apart({n: t.to("cpu").contiguous() for n, t in tensors.items()})
        temporary = self.state.with_suffix(".tmp")
        self.state.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary, {"trained": json.dumps(vars(trained))})
        os.replace(temporary, self.state)
        self._saved = time.monotonic()
        self._saving = self._saved - began

    @torch.no_grad()
    def resume(self) -> Trained:
        if self.state is None or not self.state.exists():
            return Trained()
        from safetensors import safe_open

        with safe_open(self.state, "pt") as file:
            trained = Trained(**json.loads(file.metadata()["trained"]))
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        tensors = self.problem.tensors()
        if {n.removeprefix("now.") for n in saved if n.startswith("now.")} != set(tensors):
            raise InputError(f"{self.state} is of another training; use another --output")
        for name, tensor in tensors.items():
            tensor.copy_(saved[f"now.{name}"])
        self.best = {n.removeprefix("best."): t for n, t in saved.items() if n.startswith("best.")}
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in saved.items():
            if name.startswith("adam."):
                _, index, key = name.split(".")
                moments.setdefault(int(index), {})[key] = tensor
        state = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**state, "state": moments})
        return trained


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with copies of those whose memory others of them have: no file holds such."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return apart


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


def _cuda_devices(device: str) -> list[torch.device]:
    return [torch.device(device)] if device.startswith("cuda") else []
