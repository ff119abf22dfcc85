"""Units for a wanted speed-up, which must be measured.

The choice itself is in `compressor.budgets`; here it meets the checkpoint and the machine. Every
timing is a stage of its own, from which a stopped run goes on.
"""

from __future__ import annotations

from pathlib import Path

from compressor.budgets.counts import SpeedBudget
from compressor.budgets.speed import Candidate, choose, fewest, reach
from compressor.model.sublayers import Mask, Scores
from compressor.pipeline.context import Context
from compressor.pipeline.select import Choice
from compressor.pipeline.time_masks import measure_costs, time_mask
from compressor.results import SpeedSearch, Timing, Variant


def search_speed(context: Context, budget: SpeedBudget, scores: Scores, dense: Variant) -> Choice:
    """The least loss that makes the model as fast as wanted, by a table of measured times.

    Args:
        dense: the exported dense model.

    Raises:
        UsageError: the wanted speed-up cannot be reached.
    """
    full, floors, batch = context.full, context.floors, budget.at_batch
    directory = Path(dense.directory)
    costs = measure_costs(context, directory, batch)

    def choose_for(aim: float) -> Candidate | None:
        return choose(scores, full, floors, costs, aim, context.multiples)

    def measure(mask: Mask, number: int) -> Timing:
        return time_mask(context, directory, mask, number, batch)

    least = fewest(scores, full, floors, costs, context.multiples)
    mask, tries = reach(budget.speedup, choose_for, least, measure)
    if not tries[-1].met:
        context.progress.message(
            f"no choice reached {budget.speedup:g} at batch {batch} in {len(tries)} tries; "
            "the fastest one is taken"
        )
    count = "1 choice" if len(tries) == 1 else f"{len(tries)} choices"
    text = f"by the measured cost of units at batch {batch}, {count} timed"
    found = SpeedSearch(wanted=budget.speedup, costs=costs, tries=tries)
    return Choice(mask, scores, text, found)
