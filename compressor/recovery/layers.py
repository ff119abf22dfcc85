"""What whole layers are worth, for a budget that looks for those to drop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compressor import parallel
from compressor.importance.depth import divergence
from compressor.importance.scoring import find_layers
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.recovery import Recovered
from compressor.recovery.planning import RecoveryPlan, recover
from compressor.steps.context import Context
from compressor.tasks.opened import ModelAndRows
from compressor.training.data import hold_out


@dataclass(frozen=True)
class RunLayers:
    """Finds out what whole layers are worth (`budgets.Layers`)."""

    recovery: RecoveryPlan
    source: ModelAndRows
    context: Context

    def next_to_drop(self, stack: str, dropped: Sequence[str]) -> str:
        """See `Layers`."""
        title = f"finding the next layer to drop: {','.join([*dropped, stack])}"
        inputs = {stack: 1}, dropped
        found = self.context.steps.do(
            find_layers,
            *inputs,
            title=title,
            shared=True,
            opened=self.source,
            context=self.context,
        )
        return next(iter(found))

    def divergence(self, mask: Mask) -> float:
        """See `Layers`."""
        title = f"trying without layers: {','.join(sorted(mask.dropped)) or 'none'}"
        # Training would take as long as the run's own for every number of layers.
        methods = [method for method in self.recovery.methods if not method.trains]
        return self.context.steps.do(
            measure_divergence,
            mask,
            RecoveryPlan(methods),
            title=title,
            shared=True,
            opened=self.source,
            context=self.context,
        )


def measure_divergence(
    mask: Mask, plan: RecoveryPlan, *, opened: ModelAndRows, context: Context
) -> float:
    """Divergence from the dense model on held-out rows, in nats per loss term.

    Args:
        mask: units of a model, which is recovered on the other rows.
        plan: how.
        opened: the dense model, and all rows.
        context: how to compute.
    """
    return recover_and_measure(mask, plan, opened, context)[1]


def recover_and_measure(
    mask: Mask, plan: RecoveryPlan, opened: ModelAndRows, context: Context
) -> tuple[Recovered, float]:
    """A recovered model, and its divergence; see `measure_divergence`."""
    dense, layers = opened.checkpoint.model, opened.checkpoint.layers
    trains = any(method.trains for method in plan.methods)  # which holds out the same rows itself
    learn, held = hold_out(opened.examples, context.seed, plan.text if trains else None)
    fitted = opened if trains else replace(opened, examples=learn)
    state = context.state_file("candidate.safetensors")
    pruned = prune(dense, layers, mask)
    recovered = recover(plan, pruned, mask, opened=fitted, context=context, state=state)
    batches = opened.task.batches(parallel.shard(held), dense)
    device, model = context.device, recovered.model
    try:
        lost = divergence(model.to(device), dense.to(device), batches, opened.task, device)
    finally:
        dense.to("cpu")
    return recovered, lost
