"""`compress export --layout`: what other programs open."""

from __future__ import annotations

from pathlib import Path

from compressor.errors import UsageError, did_you_mean
from compressor.export.ctranslate2 import STORED
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.optimum import export_optimum
from compressor.export.precision_names import BASE
from compressor.export.task_graphs import Network
from compressor.pipeline.inputs import export_bytes, load, random_check_batches
from compressor.request.recipe import ExportRequest
from compressor.results import Check
from compressor.runtime.engines.ctranslate2 import CTranslate2
from compressor.storage.outputs import require_new, whole_output
from compressor.tasks import TASKS

# Layouts of other programs, and the precisions that each may store, of which it has one.
OTHERS = {"optimum": (BASE,), "ctranslate2": STORED}


def export_layout(request: ExportRequest, output: Path) -> list[Check]:
    """Write a layout of another program, to `output` itself."""
    layout, export, data = request.layout, request.export, request.data
    known = ("compress", *OTHERS)
    if layout not in OTHERS:
        raise UsageError(
            f"--layout {layout!r} is unknown; use {', '.join(known)}" + did_you_mean(layout, known),
            id="name-unknown",
        )
    if len(export.precision) != 1 or export.precision[0] not in OTHERS[layout]:
        raise UsageError(
            f"--layout {layout} stores one precision, {' or '.join(OTHERS[layout])} alone; give "
            "that one, or use --layout compress",
            id="options-exclude-each-other",
        )
    engines = None if export.engines == [ONNXRUNTIME] else ",".join(export.engines)
    excluded, unused = "options-exclude-each-other", "option-without-use"
    for flag, value, id in (
        ("--engines", engines, excluded),
        ("--source-text", export.source_text, excluded),
        ("--target-text", export.target_text, excluded),
        ("--calibration", data.calibration, unused),
    ):
        if value is not None:
            raise UsageError(
                f"{flag} {value} does nothing with --layout {layout}; leave it out, or use "
                "--layout compress",
                id=id,
            )
    # Also where the output is the checkpoint's own directory: both have a config.json.
    require_new(output)
    if layout == CTranslate2.name:
        CTranslate2.library()
    checkpoint = load(request.model, dense=False)
    task = TASKS[checkpoint.task]
    batches = random_check_batches(checkpoint, task)
    needed = 2 * export_bytes(checkpoint.model, [BASE])
    with whole_output(output, needed, "exporting") as making:
        if layout != CTranslate2.name:
            return export_optimum(checkpoint, batches, making)
        network = Network(checkpoint, checkpoint.model, checkpoint.mask)
        inputs = [batch.inputs() for batch in batches]
        return task.graphs.export_ctranslate2(network, making, export.precision[0], inputs)
