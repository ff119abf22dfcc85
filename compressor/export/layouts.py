"""Layouts of other programs, which `compress export --layout` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compressor.errors import UsageError
from compressor.export.ctranslate2 import STORED
from compressor.export.exported import export_bytes
from compressor.export.task_graphs import Network
from compressor.model.checkpoint import Checkpoint
from compressor.runtime.engines.ctranslate2 import CTranslate2
from compressor.steps.results import Check
from compressor.storage.names import BASE
from compressor.storage.outputs import require_new, whole_output
from compressor.tasks import TASKS
from compressor.tasks.opened import random_check_batches

# The precisions that each may store one of, and the engine whose package it needs.
OTHERS = {"optimum": ((BASE,), None), "ctranslate2": (tuple(STORED), CTranslate2)}


def require_precision(layout: str, precisions: Sequence[str]) -> None:
    """Raise `UsageError` for precisions that a layout does not have."""
    stored, _ = OTHERS[layout]
    if len(precisions) != 1 or precisions[0] not in stored:
        raise UsageError(
            f"--layout {layout} stores one precision, {' or '.join(stored)} alone; give that "
            "one, or use --layout compress",
            id="options-exclude-each-other",
        )


def require_place(layout: str, output: Path) -> None:
    """Raise an error if the directory is not new, or the layout's package is missing."""
    # Also where the output is the checkpoint's own directory: both have a config.json.
    require_new(output)
    _, engine = OTHERS[layout]
    if engine is not None:
        engine.library()


def export_layout(checkpoint: Checkpoint, layout: str, precision: str, output: Path) -> list[Check]:
    """Write a layout of another program, to `output` itself.

    Args:
        checkpoint: dense or pruned.
        layout: of `OTHERS`.
        precision: that it stores.
        output: a new directory.

    Raises:
        InputError: the layout cannot hold the checkpoint.
        VerificationError: a graph differs from PyTorch by more than its precision's tolerance.
    """
    task = TASKS[checkpoint.task]
    task.graphs.require_layout(layout, checkpoint)
    batches = random_check_batches(checkpoint, task)
    needed = 2 * export_bytes(checkpoint.model, [BASE])
    with whole_output(output, needed, "exporting") as making:
        network = Network(checkpoint, checkpoint.model, checkpoint.mask)
        given = [batch.inputs() for batch in batches]
        return task.graphs.export_layout(network, making, precision, given)
