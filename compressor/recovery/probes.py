"""Short trainings of candidates, for a budget that weighs what training brings back."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from compressor.budgets.shapes import TrainingCost
from compressor.model.sublayers import Mask
from compressor.recovery.layers import measure_divergence, recover_and_measure
from compressor.recovery.planning import RecoveryPlan
from compressor.steps.context import Context
from compressor.tasks.opened import ModelAndRows
from compressor.training.data import hold_out

COST_STEPS = 6  # whose time is measured


@dataclass(frozen=True)
class RunTrainings:
    """Trains candidates for a short while (`budgets.shapes.Trainings`)."""

    recovery: RecoveryPlan
    source: ModelAndRows
    context: Context  # began when choosing began

    def cost(self, mask: Mask) -> TrainingCost:
        """See `Trainings`."""
        return self.context.steps.do(
            measure_cost,
            mask,
            self.recovery,
            self._shortened(COST_STEPS),
            title="measuring what training a candidate costs",
            shared=True,
            opened=self.source,
            context=self.context,
        )

    def divergence(self, mask: Mask, steps: int) -> float:
        """See `Trainings`."""
        without = ",".join(sorted(mask.dropped)) or "none"
        return self.context.steps.do(
            measure_divergence,
            mask,
            self._shortened(steps),
            title=f"training for {steps} steps without layers: {without}",
            shared=True,
            opened=self.source,
            context=self.context,
        )

    def _shortened(self, steps: int) -> RecoveryPlan:
        rows = epoch_rows(self.recovery, self.source, self.context)
        methods = [method.shortened(steps, rows) for method in self.recovery.methods]
        return replace(self.recovery, methods=methods)


def epoch_rows(plan: RecoveryPlan, opened: ModelAndRows, context: Context) -> int:
    """Rows of an epoch of training: calibration rows that are not held out, and text.

    Args:
        plan: with the text.
        opened: with all calibration rows.
        context: with the seed by which rows are held out.
    """
    learn, _ = hold_out(opened.examples, context.seed, plan.text)
    return len(learn) + (0 if plan.text is None else plan.text.rows)


def measure_cost(
    mask: Mask,
    plan: RecoveryPlan,
    short: RecoveryPlan,
    *,
    opened: ModelAndRows,
    context: Context,
) -> TrainingCost:
    """Train a candidate for a few steps, and take the time.

    Args:
        mask: units of the candidate.
        plan: of the run.
        short: the same with the steps to measure.
        opened: the dense model, and the rows to recover on.
        context: how to compute; began when choosing began.
    """
    start = time.monotonic()
    recovered, _ = recover_and_measure(mask, short, opened, context)
    seconds, step = time.monotonic() - start, recovered.seconds / recovered.steps
    rows = epoch_rows(plan, opened, context)
    return TrainingCost(
        fixed=seconds - recovered.seconds,
        step=step,
        whole=sum(method.seconds(step, rows) for method in plan.methods),
        spent=start - context.began,
    )
