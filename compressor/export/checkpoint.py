"""The export of a single checkpoint, without a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compressor.errors import InputError, UsageError
from compressor.export.exported import export_bytes, export_graphs
from compressor.export.precision_names import precisions_to_export
from compressor.export.precisions import add_precision, require_within
from compressor.export.saved import verify_reload
from compressor.export.vocabulary import tokens_of_text
from compressor.model.checkpoint import Checkpoint, save_checkpoint
from compressor.model.stored_configuration import needs_own_class
from compressor.runtime.session import choose_device
from compressor.steps.results import Check
from compressor.storage.files import require_directory
from compressor.storage.names import AUTO, BASE
from compressor.storage.outputs import require_new, whole_output
from compressor.storage.staging import require_free
from compressor.tasks.opened import ModelAndRows
from compressor.tasks.texts import TextFile


def require_place(output: Path) -> None:
    """Raise `InputError` if graphs cannot be written to a directory, or are there already."""
    require_directory(output)
    require_free(output)
    if (output / "onnx").exists():
        raise InputError(
            f"{output / 'onnx'} is there already; choose another --output", id="output-not-empty"
        )


def precisions_of(names: Sequence[str], device: str) -> tuple[str, ...]:
    """The precisions to export, float32 first.

    Nothing is timed here, so every precision that is named can be made on every machine.
    """
    usual = choose_device(device) if list(names) == [AUTO] else "cpu"
    return precisions_to_export(names, usual)


def require_place_of(checkpoint: Checkpoint, kept: TextFile | None, output: Path) -> None:
    """Check where graphs are written of a checkpoint, maybe with the tokens of a text alone.

    Args:
        checkpoint: as it was opened.
        kept: the text.
        output: a new directory, or the checkpoint's own.

    Raises:
        InputError: `output` holds something else.
        UsageError: `output` is the checkpoint's own, which has all tokens.
    """
    if output.resolve() != checkpoint.directory.resolve():
        require_new(output)
    elif kept is not None:
        raise UsageError(
            f"--source-text {kept.path} leaves tokens out of the graphs, which the checkpoint in "
            f"{output} has; choose another --output",
            id="options-exclude-each-other",
        )


def export_opened(
    opened: ModelAndRows,
    scored: TextFile | None,
    engines: Sequence[str],
    precisions: Sequence[str],
    output: Path,
    device: str,
    *,
    save: bool,
) -> list[Check]:
    """Export a checkpoint in some precisions; the directory appears once it is whole.

    Args:
        opened: the checkpoint, and rows to check on and to fit int8 on.
        scored: a text whose tokens a decoder scores; None for all.
        engines: to export for.
        precisions: float32 first.
        output: a new directory, or the checkpoint's own.
        device: to check float16 on; `auto` for a GPU where there is one.
        save: write the checkpoint beside the graphs, since it is not the one that was opened.

    Raises:
        VerificationError: a graph differs from PyTorch by more than its precision's tolerance.
    """
    checkpoint = opened.checkpoint
    seen = None if scored is None else tokens_of_text(scored, checkpoint.tokenizer)
    needed = export_bytes(checkpoint.model, [*precisions, *([BASE] if save else [])])
    with whole_output(output, needed, "exporting") as making:
        saved = _save(opened, making) if save else []
        tokens = opened.task.graphs.output_tokens(checkpoint, seen)
        checks = export_graphs(checkpoint, tokens, engines, making, opened)
        for precision in precisions[1:]:
            # Most processors compute fp16 graphs in float32: a GPU tells more, where there is one.
            checked_on = choose_device(device) if precision == "fp16" else "cpu"
            added = add_precision(
                checkpoint.model, opened.inputs, making, precision, checked_on, opened.examples
            )
            require_within(added, precision)
            checks += added
    return [*saved, *checks]


def _save(opened: ModelAndRows, directory: Path) -> list[Check]:
    """Save a checkpoint that is not the one in its own directory; it must load back as it is."""
    checkpoint, record = opened.checkpoint, None
    config = checkpoint.model.config
    if checkpoint.pruning is not None:
        record = checkpoint.pruning.contents
    elif needs_own_class(config, checkpoint.entry):  # which is written beside a record alone
        mask = checkpoint.mask
        record = {"schema": 2, "task": checkpoint.task}
        record |= {"units": mask.totals(), "kept": mask.to_json()}
    save_checkpoint(checkpoint, checkpoint.model, record, directory)
    return [verify_reload(checkpoint, directory, opened)]
