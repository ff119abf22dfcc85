"""What `compress export` checks first, and the layouts of other programs that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from compressor.errors import InputError, UsageError, did_you_mean
from compressor.export.ctranslate2 import STORED
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import AUTO, BASE, precisions_to_export
from compressor.export.task_graphs import Network
from compressor.model.checkpoint import Checkpoint
from compressor.pipeline.build import export_bytes
from compressor.pipeline.inputs import load, random_check_batches
from compressor.request.recipe import ExportRequest
from compressor.request.validate import require_rows
from compressor.results import Check
from compressor.runtime.engines.ctranslate2 import CTranslate2
from compressor.runtime.session import choose_device
from compressor.storage.files import require_directory
from compressor.storage.outputs import require_new, whole_output
from compressor.storage.staging import require_free
from compressor.tasks import TASKS


def check_export(request: ExportRequest, output: Path) -> tuple[str, ...]:
    """The precisions to export; raises if the request contradicts itself or would overwrite."""
    # Nothing is timed here, so every precision that is named can be made on every machine.
    names = request.export.precision
    device = choose_device(request.device) if names == [AUTO] else "cpu"
    precisions = precisions_to_export(names, device)
    require_rows(None, [], request.data)
    if request.data.calibration is not None and "int8" not in precisions:
        raise UsageError(
            f"--calibration {request.data.calibration} is for int8; add --precision int8, or leave "
            "it out",
            id="option-without-use",
        )
    require_directory(output)
    require_free(output)
    if (output / "onnx").exists():
        raise InputError(
            f"{output / 'onnx'} is there already; choose another --output", id="output-not-empty"
        )
    return precisions


def check_place(output: Path, checkpoint: Checkpoint, source_text: str | None) -> None:
    """Check that graphs may be written there; beside a checkpoint they have all of its tokens."""
    if output.resolve() != checkpoint.directory.resolve():
        require_new(output)
    elif source_text is not None:
        raise UsageError(
            f"--source-text {source_text} leaves tokens out of the graphs, which the checkpoint in "
            f"{output} has; choose another --output",
            id="options-exclude-each-other",
        )


def _require_plain(request: ExportRequest, layout: str) -> None:
    """Refuse options that a layout other than this tool's own has no use for."""
    export = request.export
    if export.engines != [ONNXRUNTIME]:
        raise UsageError(
            f"--engines {','.join(export.engines)} is for --layout compress; leave it out, or "
            f"leave out --layout {layout}",
            id="options-exclude-each-other",
        )
    texts = {"--source-text": export.source_text, "--target-text": export.target_text}
    for flag, text in texts.items():
        if text is not None:
            raise UsageError(
                f"{flag} {text} is not possible with --layout {layout}, whose loaders know one "
                "numbering of tokens; leave it out, or use --layout compress",
                id="options-exclude-each-other",
            )
    if request.data.calibration is not None:
        raise UsageError(
            f"--calibration {request.data.calibration} does nothing with --layout {layout}; leave "
            "it out",
            id="option-without-use",
        )


def _export_optimum(request: ExportRequest, output: Path) -> list[Check]:
    if request.export.precision != [BASE]:
        raise UsageError(
            f"--precision {','.join(request.export.precision)} is not possible with --layout "
            f"optimum, which has {BASE} alone; leave --precision out, or use --layout compress",
            id="options-exclude-each-other",
        )
    _require_plain(request, "optimum")
    # Also where the output is the checkpoint's own directory: both have a config.json.
    require_new(output)
    checkpoint = load(request.model, dense=False)
    task = TASKS[checkpoint.task]
    task.graphs.require_layout("optimum", checkpoint)
    inputs = random_check_batches(checkpoint, task).inputs
    network = Network(checkpoint, checkpoint.model, checkpoint.mask)
    with whole_output(output, export_bytes(checkpoint.model, [BASE]), "exporting") as making:
        return task.graphs.export_layout(network, making, BASE, inputs)


def _export_ctranslate2(request: ExportRequest, output: Path) -> list[Check]:
    if len(request.export.precision) != 1 or request.export.precision[0] not in STORED:
        raise UsageError(
            f"--layout ctranslate2 stores one precision, {', '.join(STORED)}; give that one",
            id="options-exclude-each-other",
        )
    (precision,) = request.export.precision
    _require_plain(request, "ctranslate2")
    require_new(output)
    CTranslate2.library()
    checkpoint = load(request.model, dense=False)
    task = TASKS[checkpoint.task]
    task.graphs.require_layout("ctranslate2", checkpoint)
    inputs = random_check_batches(checkpoint, task).inputs
    network = Network(checkpoint, checkpoint.model, checkpoint.mask)
    needed = 2 * export_bytes(checkpoint.model, [BASE])
    with whole_output(output, needed, "exporting") as making:
        return task.graphs.export_layout(network, making, precision, inputs)


# Name -> what writes it; None: this tool's own.
LAYOUTS: dict[str, Callable[[ExportRequest, Path], list[Check]] | None] = {
    "compress": None,
    "optimum": _export_optimum,
    "ctranslate2": _export_ctranslate2,
}


def layout_writer(name: str) -> Callable[[ExportRequest, Path], list[Check]] | None:
    """What writes a layout; None for this tool's own."""
    if name not in LAYOUTS:
        raise UsageError(
            f"--layout {name!r} is unknown; use {', '.join(LAYOUTS)}" + did_you_mean(name, LAYOUTS),
            id="name-unknown",
        )
    return LAYOUTS[name]
