"""Learned masks: a gate per unit, trained until it is open or closed.

One file per method, with its options in a class, and one line each in `LEARNED`; `learn` runs them.
Importing a method imports no torch: its options are part of the help.
"""

from __future__ import annotations

from compressor.budgets.units import HEADS, check_possible
from compressor.errors import UsageError
from compressor.learned_masks.method import Learned, LearnedMask, LearningJob
from compressor.model.sublayers import Mask
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
        The mask, which keeps exactly as many units as were asked for (unless a penalty decides; of
        units that go in groups, the fewest that are no less), and the weights that belong to it.

    Raises:
        UsageError: both or neither of a count and a penalty, floors that make the count
            impossible, or too many units for the method.
        InputError: too few rows, a loss that is not finite, or a state of another training.
    """
    if job.penalty is not None and job.keep is not None:
        raise UsageError(
            f"--penalty {job.penalty:g} decides how many heads are left; drop it, or drop the "
            "budget",
            id="penalty-and-budget",
        )
    if job.keep is None and (job.penalty is None or not method.takes_penalty):
        raise UsageError(
            f"--method {method.name} needs to know how many units to keep; give --keep",
            id="budget-missing",
        )
    if job.keep is not None:
        text = ",".join(str(n) if k == HEADS else f"{k}={n}" for k, n in job.keep.items())
        full = Mask.full(job.layers)
        check_possible(f"keep {text}", job.keep, job.floors, full)
        method.check_size(job.keep, full)
    from compressor.learned_masks.layout import GateLayout
    from compressor.learned_masks.learning import run

    layout = GateLayout(job.layers, job.keep, job.floors, job.multiples)
    return run(method, method.make_gates(layout, job), job)
