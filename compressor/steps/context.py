"""What is the same in a whole run or command, and is handed to every function of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from compressor.progress import SILENT, Progress
from compressor.steps.store import Steps


@dataclass(frozen=True)
class Context:
    """How a run or a command computes: made once, and never part of a key.

    The device and the seed are options, which the identity of a run has.
    """

    device: str = "cpu"  # `cuda` or `cpu`, for torch and onnxruntime alike
    seed: int = 0
    progress: Progress = SILENT
    store: Steps | None = None  # None of commands that keep no results
    # `time.monotonic`, when it began; of a search that is to take a share of a run's time, when
    # choosing began.
    began: float = field(default_factory=time.monotonic)

    @property
    def steps(self) -> Steps:
        """The steps of a run, of which results are kept."""
        assert self.store is not None, "this command keeps no results"
        return self.store

    def state_file(self, name: str) -> Path | None:
        """Where a training keeps its state, so that a stopped step goes on; None without a step."""
        folder = None if self.store is None else self.store.scratch
        return None if folder is None else folder / name
