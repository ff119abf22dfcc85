"""Timing choices of units before they are built: their graphs against those of the dense model.

Time does not depend on the weights, so the graphs are those of the dense model without the units;
they are neither recovered nor checked, and deleted once timed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.for_cuda import link_float32
from compressor.export.precision_names import BASE
from compressor.export.precisions import write_precision
from compressor.export.task_graphs import Network
from compressor.model.checkpoint import Checkpoint
from compressor.model.memory import release
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune, without_skipped
from compressor.progress import Progress
from compressor.request.sections import Benchmark
from compressor.results import Throughput
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.tasks import TASKS, Rows
from compressor.throughput import Subject, benchmark


def time_masks(
    masks: Mapping[str, Mask],
    at_batch: int,
    *,
    checkpoint: Checkpoint,
    dense: Path,
    rows: Rows,
    settings: Benchmark,
    device: str,
    folder: Path,
    progress: Progress,
    engine: str = ONNXRUNTIME,
    precision: str = BASE,
) -> Throughput:
    """Time a dense model without the units that masks remove, in turns with itself.

    Args:
        masks: name of each model, other than `dense` -> its units.
        dense: the artifact of the dense model, exported for the engine.
        settings: of the run's throughput measurement.
        folder: an empty directory for the graphs.
    """
    reference = dense
    if precision != BASE:  # the dense model may not have been exported in that yet
        reference = folder / "dense"
        link_float32(dense, reference)
        write_precision(reference, precision, (), device=device)
    full = Mask.full(checkpoint.layers).counts()
    subjects = [Subject("dense", reference, full, precision, engine)]
    for number, (name, mask) in enumerate(masks.items(), 1):
        path = folder / str(number)
        export_trial(checkpoint, mask, dense, path, engine)
        if precision != BASE:
            write_precision(path, precision, (), device=device)
        counts = mask.of_layers_left().counts()
        subjects.append(Subject(name, path, counts, precision, engine))
        progress.update("graphs", number, len(masks))
    how = settings.settings() | {"batch_sizes": [at_batch], "memory": False}
    return benchmark(subjects, rows=rows, device=device, progress=progress.message, **how)


def export_trial(
    checkpoint: Checkpoint, mask: Mask, dense: Path, directory: Path, engine: str = ONNXRUNTIME
) -> None:
    """Write an engine's files of the dense weights without the units that `mask` removes.

    Nothing is checked. Graphs that lose no unit are copied from the artifact `dense`: exporting
    takes far longer than timing.
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
