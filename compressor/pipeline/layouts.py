"""Layouts of other programs, which `compress export --layout` writes."""

from __future__ import annotations

from pathlib import Path

from compressor.errors import UsageError, did_you_mean
from compressor.export.ctranslate2 import STORED
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import BASE
from compressor.export.task_graphs import Network
from compressor.options.requests import ExportRequest
from compressor.pipeline import inputs
from compressor.results import Check
from compressor.runtime.engines.ctranslate2 import CTranslate2
from compressor.storage.outputs import require_new, whole_output
from compressor.tasks import TASKS

# The precisions that each may store one of, and the engine whose package it needs.
OTHERS = {"optimum": ((BASE,), None), "ctranslate2": (tuple(STORED), CTranslate2)}


def export_layout(request: ExportRequest, output: Path) -> list[Check]:
    """Write a layout of another program, to `output` itself.

    Raises:
        UsageError: an unknown layout, or options that it does not have.
        InputError: `output` holds something already, or the layout cannot hold the checkpoint.
        VerificationError: a graph differs from PyTorch by more than its precision's tolerance.
    """
    layout, export = request.layout, request.export
    known = ("compress", *OTHERS)
    if layout not in OTHERS:
        raise UsageError(
            f"--layout {layout!r} is unknown{did_you_mean(layout, known)}; use compress, or for "
            "encoders optimum, or for encoder-decoders ctranslate2",
            id="name-unknown",
        )
    precisions, engine = OTHERS[layout]
    if len(export.precision) != 1 or export.precision[0] not in precisions:
        raise UsageError(
            f"--layout {layout} stores one precision, {' or '.join(precisions)} alone; give that "
            "one, or use --layout compress",
            id="options-exclude-each-other",
        )
    _refuse_others(request)
    # Also where the output is the checkpoint's own directory: both have a config.json.
    require_new(output)
    if engine is not None:
        engine.library()
    checkpoint = inputs.load(request.model, dense=False)
    task = TASKS[checkpoint.task]
    task.graphs.require_layout(layout, checkpoint)
    batches = inputs.random_check_batches(checkpoint, task)
    needed = 2 * inputs.export_bytes(checkpoint.model, [BASE])
    with whole_output(output, needed, "exporting") as making:
        network = Network(checkpoint, checkpoint.model, checkpoint.mask)
        given = [batch.inputs() for batch in batches]
        return task.graphs.export_layout(network, making, export.precision[0], given)


def _refuse_others(request: ExportRequest) -> None:
    """Raise `UsageError` for options that do nothing for a layout of another program."""
    export, layout = request.export, request.layout
    engines = None if export.engines == [ONNXRUNTIME] else ",".join(export.engines)
    excluded, unused = "options-exclude-each-other", "option-without-use"
    for flag, value, id in (
        ("--engines", engines, excluded),
        ("--source-text", export.source_text, excluded),
        ("--target-text", export.target_text, excluded),
        ("--calibration", request.data.calibration, unused),
    ):
        if value is not None:
            raise UsageError(
                f"{flag} {value} does nothing with --layout {layout}; leave it out, or use "
                "--layout compress",
                id=id,
            )
