"""Timing choices of units before they are built: their graphs against those of the dense model.

Time does not depend on the weights, so the graphs are those of the dense model without the units;
they are neither repaired nor checked, and deleted once timed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compressor.budgets.cost_table import trial_mask
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.for_cuda import link_float32
from compressor.export.precision_names import BASE
from compressor.export.precisions import write_precision
from compressor.export.task_graphs import Network
from compressor.model.checkpoint import Checkpoint
from compressor.model.depth import without_skipped
from compressor.model.memory import release
from compressor.model.sublayers import Mask
from compressor.model.surgery import prune
from compressor.pipeline.stages import stage
from compressor.request.sections import Benchmark
from compressor.results import Throughput, Timing
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.storage.staging import staging
from compressor.storage.workspace import Workspace
from compressor.tasks import TASKS, Rows
from compressor.throughput import Subject, benchmark

_CHOICE = "choice"


@dataclass(frozen=True)
class Timer:
    """Times models without the units that masks remove, in turns with the dense one.

    Args:
        dense: the artifact of the dense model, exported for the engine.
        rows: to time on.
        settings: of the run's throughput measurement.
        engine: that computes.
        precision: that graphs are timed in.
    """

    checkpoint: Checkpoint
    dense: Path
    rows: Rows
    settings: Benchmark
    device: str
    engine: str = ONNXRUNTIME
    precision: str = BASE

    def time(self, workspace: Workspace, masks: Mapping[str, Mask], at_batch: int) -> Throughput:
        """Time some masks against the dense model.

        Args:
            masks: name of each model -> its units; `dense` is taken.
        """
        progress = workspace.progress
        with staging(workspace.state) as staged:
            full = Mask.full(self.checkpoint.layers).counts()
            dense = self._dense(staged)
            subjects = [Subject("dense", dense, full, self.precision, self.engine)]
            for number, (name, mask) in enumerate(masks.items(), 1):
                path = staged / str(number)
                export_trial(self.checkpoint, mask, self.dense, path, self.engine)
                self._convert(path)
                counts = mask.of_layers_left().counts()
                subjects.append(Subject(name, path, counts, self.precision, self.engine))
                progress.update("graphs", number, len(masks))
            settings = self.settings.settings() | {"batch_sizes": [at_batch], "memory": False}
            return benchmark(
                subjects, rows=self.rows, device=self.device, progress=progress.message, **settings
            )

    def _dense(self, staged: Path) -> Path:
        """The dense artifact in the precision; it may not have been exported in that yet."""
        if self.precision == BASE:
            return self.dense
        copied = staged / "dense"
        link_float32(self.dense, copied)
        self._convert(copied)
        return copied

    def _convert(self, directory: Path) -> None:
        if self.precision != BASE:
            write_precision(directory, self.precision, (), device=self.device)

    def time_one(self, workspace: Workspace, mask: Mask, at_batch: int) -> Timing:
        """One choice of units, with its speed-up over dense."""
        timed = self.time(workspace, {_CHOICE: mask}, at_batch)
        return next(row for row in timed.rows if row.variant == _CHOICE)


@stage("costs")
def time_units(
    workspace: Workspace,
    timer: Timer,
    kind: str,
    counts: str,
    numbers: Sequence[int],
    at_batch: int,
) -> Throughput:
    """Models with all sublayers of some kinds at some number of units, timed against dense.

    Args:
        kind: or several, joined by plus signs.
        counts: the numbers, for messages.
    """
    full, kinds = Mask.full(timer.checkpoint.layers), kind.split("+")
    masks = {f"{kind}={count}": trial_mask(full, kinds, count) for count in numbers}
    return timer.time(workspace, masks, at_batch)


@stage("timed-choice")
def time_mask(workspace: Workspace, timer: Timer, mask: Mask, number: int, at_batch: int) -> Timing:
    """Timing of one choice of units, with its speed-up over dense.

    Args:
        number: of the try, from 1.
    """
    return timer.time_one(workspace, mask, at_batch)


def export_trial(
    checkpoint: Checkpoint, mask: Mask, dense: Path, directory: Path, engine: str = ONNXRUNTIME
) -> None:
    """Write what an engine runs of the dense weights without the units that `mask` removes.

    Nothing is checked. A graph that no unit goes from is copied from the artifact `dense`, where
    there are several: exporting takes far longer than timing.
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
