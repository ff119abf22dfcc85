"""Repair after the cut: better weights for the heads that are left.

One file per method, one line each in `RECOVERIES`; `recover` is the only entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from compressor.errors import UsageError
from compressor.model.sublayers import Mask, Sublayer

if TYPE_CHECKING:
    from torch import nn

    from compressor.tasks import Batch, Example, Task

NONE = "none"
RECOVERIES: dict[str, str] = {
    "reconstruct": "compressor.recovery.reconstruct:recover",
    "distill": "compressor.recovery.distill:recover",
}
HOLDS_OUT = "distill"  # keeps some of the rows to judge itself on


@dataclass(frozen=True)
class Recovery:
    """Everything a recovery method may use.

    Args:
        dense: the model before the cut; it is not changed.
        pruned: the model without the heads that `mask` removes; it is changed in place.
        layers: of the dense model.
        batches: calibration batches of `task` (see `compressor.tasks`), on the CPU.
        examples: the same rows as `task.encode` gives them, for methods that shuffle them.
        task: the task's module.
        device: where to compute; both models are brought there and back to the CPU.
        progress: called with (steps done, steps in all); what a step is, the method decides.
        report: called with a line now and then.
        epochs, learning_rate, patience: of distillation; see `compressor.training.Schedule`.
        state: file from which a stopped distillation goes on.
    """

    dense: nn.Module
    pruned: nn.Module
    layers: Sequence[Sublayer]
    mask: Mask
    batches: Sequence[Batch]
    task: Task
    examples: Sequence[Example] = ()
    seed: int = 0
    device: str = "cpu"
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)
    report: Callable[[str], None] = field(default=lambda line: None)
    epochs: int = 5
    learning_rate: float = 1e-4
    patience: int = 2
    state: Path | None = None


def _without_held_out(job: Recovery) -> Recovery:
    """The job without the rows on which distillation will judge itself: fitted to them, the model
    would look as if there were nothing left to learn."""
    from compressor.training import hold_out

    learn, _ = hold_out(job.examples, job.seed)
    return replace(job, examples=learn, batches=job.task.batches(learn, job.dense))


def parse_recovery(text: str) -> list[str]:
    """The methods of `--recover`, in order: `reconstruct`, or several as `reconstruct+distill`.

    Raises:
        UsageError: there is no such method (the message lists those there are), one comes twice,
            or `none` stands beside others.
    """
    methods = [part.strip() for part in text.split("+")]
    for method in methods:
        if method not in (NONE, *RECOVERIES):
            there = ", ".join((NONE, *RECOVERIES))
            raise UsageError(
                f"there is no recovery method {method!r}; there are {there}, and "
                "reconstruct+distill does one after the other"
            )
    if len(set(methods)) < len(methods) or (NONE in methods and len(methods) > 1):
        raise UsageError(f"--recover {text}: name each method once, and none only alone")
    return [method for method in methods if method != NONE]


def check_recovery(text: str, has_rows: bool) -> None:
    """Raise `UsageError` if `--recover` is wrong, or has no rows to use; before anything is run."""
    if parse_recovery(text) and not has_rows:
        raise UsageError(f"--recover {text} needs --calibration FILE; give one, or --recover none")


def recover(text: str, job: Recovery) -> str:
    """Repair `job.pruned` in place with one of `RECOVERIES`, or with several joined by `+`.

    Returns:
        What was done, in a few words for the report; empty if nothing was.

    Raises:
        UsageError: there is no such method, or it needs calibration rows and there are none.
    """
    check_recovery(text, bool(job.batches))
    job.dense.to(job.device), job.pruned.to(job.device)
    try:
        done, methods = [], parse_recovery(text)
        for place, method in enumerate(methods):
            module, _, function = RECOVERIES[method].partition(":")
            before_training = HOLDS_OUT in methods[place + 1 :]
            now = _without_held_out(job) if before_training else job
            done.append(getattr(import_module(module), function)(now))
        return "; then ".join(done)
    finally:
        job.dense.to("cpu"), job.pruned.to("cpu")
