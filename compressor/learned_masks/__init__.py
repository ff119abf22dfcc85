"""Learned masks: a gate per unit, trained until it is open or closed.

One file per method, with its options in a class, and one line each in `LEARNED`; `learn` runs them.
Importing a method imports no torch: its options are part of the help.
"""

from __future__ import annotations

from compressor.learned_masks.method import Learned, LearnedMask, LearningJob
from compressor.options.table import Table

LEARNED: Table[type[LearnedMask]] = Table(
    "learned mask",
    {
        "hard-concrete": "compressor.learned_masks.hard_concrete:HardConcrete",
        "subset": "compressor.learned_masks.subset:Subset",
    },
    id="method-unknown",
)


def learn(method: LearnedMask, job: LearningJob) -> Learned:
    """Learn a mask.

    Returns:
        The mask, which keeps exactly the wanted number of units (with a penalty, as many as it
        leaves; of units in groups, the smallest number of groups that is enough), and its weights.

    Raises:
        InputError: too few rows, or a loss that is not finite.
    """
    from compressor.learned_masks.learning import run

    return run(method, job)
