"""Speed of choices of units, for a budget that searches by it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compressor.export.for_cuda import link_float32
from compressor.export.precisions import write_precision
from compressor.export.task_graphs import Network
from compressor.model.checkpoint import Checkpoint
from compressor.model.memory import release
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune, without_skipped
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.steps.context import Context
from compressor.steps.results import Throughput
from compressor.steps.values import DENSE, Exported
from compressor.storage.names import BASE, ONNXRUNTIME
from compressor.tasks import TASKS, Rows
from compressor.throughput.bench import Subject, benchmark


@dataclass(frozen=True)
class RunTimer:
    """Times choices of units against the dense model (`budgets.Timer`)."""

    dense: Exported
    engine: str
    precision: str
    settings: Mapping[str, Any]  # keywords of `benchmark`
    checkpoint: Checkpoint  # to remove units from
    rows: Rows  # whose lengths are timed
    context: Context

    def time(self, masks: Mapping[str, Mask], batch: int, what: str) -> Throughput:
        """See `Timer`."""
        inputs = masks, batch, self.dense, self.engine, self.precision, self.settings
        return self.context.steps.do(
            time_masks,
            *inputs,
            title=f"timing {what}",
            checkpoint=self.checkpoint,
            rows=self.rows,
            context=self.context,
        )


def time_masks(
    masks: Mapping[str, Mask],
    batch: int,
    dense: Exported,
    engine: str,
    precision: str,
    settings: Mapping[str, Any],
    *,
    checkpoint: Checkpoint,
    rows: Rows,
    context: Context,
) -> Throughput:
    """Time the exported dense model without the units that masks remove, in turns with itself.

    Time does not depend on the weights, so nothing is recovered or checked.

    Args:
        masks: name of each subject -> the units that it keeps.
        batch: rows in a batch.
        dense: the exported dense model.
        engine: that is timed.
        precision: that is timed.
        settings: keywords of `benchmark`.
        checkpoint: the dense model.
        rows: whose lengths are timed.
        context: where they are timed.
    """
    exported, device = dense.directory, context.device
    with context.steps.staging() as folder:
        reference = exported
        if precision != BASE:  # the dense model may not have been exported in that yet
            reference = folder / DENSE
            link_float32(exported, reference)
            write_precision(reference, precision, (), device=device)
        full = Mask.full(checkpoint.layers).counts()
        subjects = [Subject(DENSE, reference, full, precision, engine)]
        for number, (name, mask) in enumerate(masks.items(), 1):
            path = folder / str(number)
            export_trial(checkpoint, mask, exported, path, engine)
            if precision != BASE:
                write_precision(path, precision, (), device=device)
            counts = mask.of_layers_left().counts()
            subjects.append(Subject(name, path, counts, precision, engine))
            context.progress.update("graphs", number, len(masks))
        how = {**settings, "batch_sizes": [batch], "memory": False}
        return benchmark(
            subjects, rows=rows, device=device, progress=context.progress.message, **how
        )


def export_trial(
    checkpoint: Checkpoint, mask: Mask, dense: Path, directory: Path, engine: str = ONNXRUNTIME
) -> None:
    """Write an engine's files of the dense weights without the units that `mask` removes.

    Graphs that lose no unit are copied from `dense`: exporting takes far longer than timing.
    """
    graphs = directory / GRAPH_DIRECTORY
    graphs.mkdir(parents=True)
    shutil.copy(dense / GRAPH_DIRECTORY / "tokenizer.json", graphs)
    changed = {kind for kind in mask.kinds() if mask.count(kind) < mask.total(kind)}
    task_graphs = TASKS[checkpoint.task].graphs
    same = [role for role, kinds in task_graphs.parts.items() if not changed & kinds]
    for role in same:
        for path in (dense / GRAPH_DIRECTORY).glob(f"{role}.onnx*"):  # weights may lie beside it
            shutil.copy(path, graphs)
    pruned = prune(checkpoint.model, checkpoint.layers, mask)
    small = without_skipped(checkpoint, pruned, mask)
    network = Network(small, small.model, small.mask, task_graphs.output_tokens(checkpoint))
    needs_graphs = not task_graphs.write_engine(network, directory, engine)
    task_graphs.export(network, graphs, skip=same if needs_graphs else task_graphs.parts)
    release(small.model, keep=checkpoint.model)
