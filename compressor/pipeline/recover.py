"""The recovery of pruned models, and the text of `--distill-text` that it may learn from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from compressor import parallel, recovery
from compressor.errors import UsageError
from compressor.export.precision_names import BASE
from compressor.model.checkpoint import Checkpoint
from compressor.model.languages import direction
from compressor.model.pruning_record import read_pruning_record
from compressor.model.sublayers import Mask
from compressor.model.surgery import left_of
from compressor.pipeline.inputs import ModelAndRows
from compressor.progress import Progress
from compressor.request.sections import Columns
from compressor.results import Variant
from compressor.runtime.text import one_warning_of_cut
from compressor.steps import Steps
from compressor.storage.files import written_at_once
from compressor.tasks import TASKS, Rows
from compressor.training.data import GPU_CHUNK_ROWS, Text, TextLines, translate_lines

if TYPE_CHECKING:
    from torch import nn


def recover(
    methods: Sequence[recovery.RecoveryMethod],
    source: ModelAndRows,
    pruned: nn.Module,
    mask: Mask,
    *,
    text: Text | None = None,
    state: Path | None = None,
) -> recovery.Recovered:
    """Recover a pruned model, but for layers that it skips.

    Args:
        text: to distill from; for a translator with its translations.
        state: file from which a stopped training goes on.
    """
    job = recovery.RecoveryJob(
        dense=source.checkpoint.model, pruned=pruned, mask=mask,
        layers=left_of(pruned, source.checkpoint.layers),
        examples=source.examples, text=text, task=source.task,
        seed=source.seed, device=source.device, state=state,
        report=source.progress.message, progress=partial(source.progress.update, "recovery"),
    )  # fmt: skip
    return recovery.recover(methods, job)


def require_trainable(
    methods: Sequence[recovery.RecoveryMethod], rows: int, *, learns: bool = False
) -> None:
    """Raise `InputError` for too few rows to train on, or without the artifact to start from."""
    if learns or any(step.trains for step in methods):
        from compressor.training.data import require_enough

        require_enough(rows)
    directory = recovery.earlier_artifact(methods)
    if directory is not None:
        read_pruning_record(directory)


def open_text(
    methods: Sequence[recovery.RecoveryMethod],
    rows: Rows | None,
    checkpoint: Checkpoint,
    section: Columns,
    progress: Progress,
) -> Text | None:
    """The text to distill from, all lines checked; None if none is given.

    Where the calibration rows are pairs of texts, lines are pairs, too.
    """
    text, task = recovery.extra_text(methods), TASKS[checkpoint.task]
    if text is None:
        return None
    if not task.one_example_per_row:
        raise UsageError(
            f"--distill-text {text.path}: a line would need the parts of its own that rows for "
            f"{task.name} have; leave it out, and give more --calibration rows",
            id="text-for-other-tasks",
        )
    pairs = task.joins_pairs and rows is not None and bool(rows.pairs)
    lines = TextLines(
        text.path,
        columns_of=partial(
            task.text_columns,
            reading=section.reading(direction(checkpoint.tokenizer)),
            pairs="all" if pairs else "none",
        ),
        pairs=pairs,
        progress=lambda done: progress.update("lines read", done, None),
    )
    if lines.said:
        progress.message(lines.said)
    return Text(
        lines=lines,
        task=task,
        tokenizer=checkpoint.tokenizer,
        max_tokens=checkpoint.max_source_tokens,
        labels=task.label_names(checkpoint.model.config),
    )


def text_to_learn(
    text: Text | None,
    methods: Sequence[recovery.RecoveryMethod],
    dense: Variant | None,
    device: str,
    steps: Steps,
) -> Text | None:
    """The text, unpacked, and where the task needs answers with those of the exported model."""
    if text is not None and text.lines.is_packed:
        path = steps.state / "distill-text.unpacked"
        title = f"unpacking {text.lines.path.name}"
        steps.do(unpack, title=title, lines=text.lines, path=path, steps=steps)
        text = text.unpacked(path)
    if text is not None and text.task.learns_from_answers:
        path, given = steps.state / "translations.txt", recovery.extra_text(methods)
        assert given is not None
        title = f"answering {text.lines.path.name} with the dense model"
        steps.do(
            translate, given.beams, dense, title=title, shared=True, text=text, path=path,
            device=device, steps=steps,
        )  # fmt: skip
        text = text.translated(path)
    return text


def unpack(*, lines: TextLines, path: Path, steps: Steps) -> int:
    """Write the unpacked text; the number of its lines that hold text."""
    with written_at_once(path) as staged:
        lines.unpack(staged, partial(steps.progress.update, "MiB unpacked"))
    steps.wrote(path)
    return lines.rows


def translate(
    beams: int, dense: Variant, *, text: Text, path: Path, device: str, steps: Steps
) -> str:
    """Write the exported dense model's translations: on a CPU several times as fast as PyTorch."""
    runtime = text.task.open(dense.directory, precision=BASE, device=device)
    scratch = steps.scratch / path.name
    with one_warning_of_cut():
        translate_lines(
            text.lines,
            scratch,
            partial(text.task.answer, runtime, num_beams=beams),
            chunk_rows=None if device == "cpu" else GPU_CHUNK_ROWS,
            progress=partial(steps.progress.update, "lines answered"),
        )
    parallel.on_main(lambda: scratch.replace(path))
    return parallel.on_main(lambda: steps.wrote(path))
