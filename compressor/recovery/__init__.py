"""Repair after the cut: better weights for the heads that are left.

One file per method, one line each in `RECOVERIES`; `recover` is the only entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from compressor.errors import UsageError
from compressor.heads import AttentionLayer, HeadMask

if TYPE_CHECKING:
    from torch import nn

    from compressor.tasks import Batch

RECOVERIES: dict[str, str] = {
    "none": "compressor.recovery.none:recover",
    "reconstruct": "compressor.recovery.reconstruct:recover",
}
# Methods that look at no calibration rows.
DATA_FREE = frozenset({"none"})


@dataclass(frozen=True)
class Recovery:
    """Everything a recovery method may use.

    Args:
        dense: the model before the cut; it is not changed.
        pruned: the model without the heads that `mask` removes; it is changed in place.
        layers: of the dense model.
        batches: calibration batches of `task` (see `compressor.tasks`), on the CPU.
        task: the task's module.
        device: where to compute; both models are brought there and back to the CPU.
        progress: called with (steps done, steps in all); what a step is, the method decides.
    """

    dense: nn.Module
    pruned: nn.Module
    layers: Sequence[AttentionLayer]
    mask: HeadMask
    batches: Sequence[Batch]
    task: ModuleType
    seed: int = 0
    device: str = "cpu"
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)


def check_recovery(method: str, has_rows: bool) -> None:
    """Raise `UsageError` if there is no such method, or no rows for it; before anything is run."""
    if method not in RECOVERIES:
        there = ", ".join(RECOVERIES)
        raise UsageError(f"there is no recovery method {method!r}; there are {there}")
    if method not in DATA_FREE and not has_rows:
        raise UsageError(f"--recover {method} needs --calibration FILE")


def recover(method: str, job: Recovery) -> str:
    """Repair `job.pruned` in place with one of `RECOVERIES`.

    Returns:
        What was done, in a few words for the report; empty if nothing was.

    Raises:
        UsageError: there is no such method (the message lists those there are), or it needs
            calibration rows and there are none.
    """
    check_recovery(method, bool(job.batches))
    module, _, function = RECOVERIES[method].partition(":")
    job.dense.to(job.device), job.pruned.to(job.device)
    try:
        text: str = getattr(import_module(module), function)(job)
        return text
    finally:
        job.dense.to("cpu"), job.pruned.to("cpu")
