"""Engines that artifacts are exported for and run in."""

from __future__ import annotations

from collections.abc import Sequence

from compressor.export.engine_names import ALWAYS
from compressor.tasks import Task


def require_engines(names: Sequence[str], task: Task, device: str = "cpu") -> None:
    """Check, before anything long is computed, that engines can be used.

    Raises:
        UsageError: one does not run models of the task, or not on the device.
        EnvironmentProblem: its package is missing or too old.
    """
    for name in names:
        engine = task.engine(name)
        if name != ALWAYS:
            engine.library()
            engine.choose_device(device)
