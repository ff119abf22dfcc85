"""Which whole layers a run drops, and what a choice with fewer layers costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compressor import parallel
from compressor.importance.depth import divergence, layers_to_drop
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.pipeline.inputs import Fitted
from compressor.pipeline.repair import Repair
from compressor.progress import Progress
from compressor.tasks import TASKS


def find_layers(
    checkpoint: Checkpoint,
    fitted: Fitted,
    numbers: Mapping[str, int],
    device: str,
    progress: Progress,
    gone: Sequence[str] = (),
) -> dict[str, float]:
    """The layers whose skipping changes predictions least; see `layers_to_drop`."""
    task = TASKS[checkpoint.task]
    return layers_to_drop(
        checkpoint.model,
        checkpoint.layers,
        task.batches(parallel.shard(fitted.examples), checkpoint.model),
        task,
        numbers,
        device,
        lambda done, total: progress.update("layers", done, total),
        gone,
    )


def divergence_after_repair(repair: Repair, mask: Mask) -> float:
    """Divergence from the dense model on held-out rows, in nats per loss term.

    The cut is repaired on the other rows, without training: that would take as long as the run's
    own for every number of layers.
    """
    from compressor.training.data import hold_out

    checkpoint, device = repair.checkpoint, repair.device
    task = TASKS[checkpoint.task]
    learn, held = hold_out(repair.examples, repair.seed)
    quick = replace(
        repair, steps=[step for step in repair.steps if not step.trains], examples=learn, text=None
    )
    pruned = quick.run(prune(checkpoint.model, checkpoint.layers, mask), mask, "layers").model
    batches = task.batches(parallel.shard(held), checkpoint.model)
    try:
        return divergence(pruned.to(device), checkpoint.model.to(device), batches, task, device)
    finally:
        checkpoint.model.to("cpu")
