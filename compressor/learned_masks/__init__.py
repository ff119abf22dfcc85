"""Learned masks: a gate per unit, trained until it is open or closed.

A method is a class in `method`, with its options, its gates in a file of their own, and a line in
`LEARNED`; `learn` runs it. Importing a method imports no torch: its options are part of the help.
"""

from __future__ import annotations

from compressor.learned_masks.method import (
    HardConcrete,
    Learned,
    LearnedMask,
    LearningJob,
    Subset,
)
from compressor.options.table import Table

LEARNED: Table[type[LearnedMask]] = Table(
    "learned mask",
    {"hard-concrete": HardConcrete, "subset": Subset},
    id="method-unknown",
)


def learn(method: LearnedMask, job: LearningJob) -> Learned:
    """Learn a mask, and its weights.

    It keeps exactly the wanted number of units (with a penalty, as many as it leaves; of units in
    groups, the smallest number of groups that is enough).

    Raises:
        InputError: too few rows, or a loss that is not finite.
    """
    from compressor.learned_masks.learning import run

    return run(method, job)
