"""The kinds of budgets. To add one, write a module with a subclass of `Budget`; name it here."""

from __future__ import annotations

from compressor.budgets.base import Budget, Choice, Judge, Layers, Limits, Scorer, Timer
from compressor.budgets.counts import Counts, Macs, Penalty, SteppedCounts
from compressor.budgets.max_drop import MaxDrop
from compressor.budgets.speedup import Speedup

__all__ = [
    "BUDGETS",
    "Budget",
    "Choice",
    "Counts",
    "Judge",
    "Layers",
    "Limits",
    "Scorer",
    "Timer",
]

BUDGETS: tuple[type[Budget], ...] = (Macs, SteppedCounts, Speedup, MaxDrop, Penalty)
