"""What whole layers are worth, for a budget that looks for those to drop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compressor import parallel
from compressor.importance.depth import divergence
from compressor.importance.scoring import find_layers
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.recovery import RecoveryMethod
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
            methods,
            title=title,
            shared=True,
            opened=self.source,
            context=self.context,
        )


def measure_divergence(
    mask: Mask, methods: Sequence[RecoveryMethod], *, opened: ModelAndRows, context: Context
) -> float:
    """Divergence from the dense model on held-out rows, in nats per loss term.

    The model with the mask's units is recovered on the other rows.
    """
    dense, layers = opened.checkpoint.model, opened.checkpoint.layers
    learn, held = hold_out(opened.examples, context.seed)
    pruned = prune(dense, layers, mask)
    fitted = replace(opened, examples=learn)
    how = RecoveryPlan(methods)
    recovered = recover(how, pruned, mask, opened=fitted, context=context).model
    batches = opened.task.batches(parallel.shard(held), dense)
    device = context.device
    try:
        return divergence(recovered.to(device), dense.to(device), batches, opened.task, device)
    finally:
        dense.to("cpu")
