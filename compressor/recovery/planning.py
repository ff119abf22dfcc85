"""The recovery of pruned models, and the text of `--distill-text` that it may learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor import parallel
from compressor.model.pruning_record import read_pruning_record
from compressor.model.sublayers import Mask
from compressor.model.surgery import remaining_sublayers
from compressor.progress import Progress
from compressor.recovery import (
    Recovered,
    RecoveryJob,
    RecoveryMethod,
    earlier_artifact,
    extra_text,
)
from compressor.recovery import recover as recover_by
from compressor.recovery.translations import GPU_CHUNK_ROWS, translate_lines
from compressor.runtime.text import one_warning_of_cut
from compressor.steps.context import Context
from compressor.steps.results import OutputPath
from compressor.steps.values import Exported
from compressor.storage.names import BASE
from compressor.tasks.opened import ModelAndRows
from compressor.tasks.rows import Reading
from compressor.training.text import Text, training_text

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class RecoveryPlan:
    """How a run recovers models."""

    methods: Sequence[RecoveryMethod] = ()  # in their order
    files: Sequence[Path] = ()  # that steps made of the text, and training reads
    text: Text | None = field(default=None, compare=False)  # to distill from, once it is ready

    @property
    def names(self) -> str:
        """The methods, as typed."""
        return "+".join(method.name for method in self.methods)

    def with_tokenizer(self, tokenizer: Any) -> RecoveryPlan:
        """The same, for a model whose tokenizer has fewer tokens."""
        text = None if self.text is None else replace(self.text, tokenizer=tokenizer)
        return replace(self, text=text)


def recover(
    plan: RecoveryPlan,
    pruned: nn.Module,
    mask: Mask,
    *,
    opened: ModelAndRows,
    context: Context,
    state: Path | None = None,
) -> Recovered:
    """Recover a pruned model, but for layers that it skips.

    Args:
        plan: the methods, without any of which the model stays as it is, and the text to distill
            from; for a translator with its translations.
        pruned: without the units that `mask` removes; not changed.
        mask: the units of the dense model that it keeps.
        opened: the dense model, and the rows to recover on.
        context: how to compute.
        state: file from which a stopped training goes on.
    """
    job = RecoveryJob(
        dense=opened.checkpoint.model,
        pruned=pruned,
        mask=mask,
        layers=remaining_sublayers(pruned, opened.checkpoint.layers),
        examples=opened.examples,
        text=plan.text,
        task=opened.task,
        seed=context.seed,
        device=context.device,
        state=state,
        report=context.progress.message,
        progress=partial(context.progress.update, "recovery"),
    )
    return recover_by(plan.methods, job)


def open_recovery(
    methods: Sequence[RecoveryMethod],
    opened: ModelAndRows,
    reading: Reading,
    progress: Progress,
    learns: bool = False,
) -> RecoveryPlan:
    """The methods, with the text to distill from, all lines checked, if one is given.

    Args:
        methods: in their order.
        opened: the dense model, and the rows to recover on.
        reading: how the text is read.
        progress: receives messages.
        learns: whether weights are trained before, too, with a learned mask.

    Raises:
        InputError: too few rows to train on, an artifact to start from that is none, or malformed
            text.
        UsageError: the task reads no such text.
    """
    directory = earlier_artifact(methods)
    text = extra_text(methods)
    if learns or any(step.trains for step in methods):
        from compressor.training.data import require_enough

        require_enough(len(opened.examples))
    if directory is not None:
        read_pruning_record(directory)
    lines = None
    if text is not None:
        lines = training_text(text.path, opened, reading, progress, copies=text.copies)
    return RecoveryPlan(methods, text=lines)


def prepare_recovery(plan: RecoveryPlan, dense: Exported | None, context: Context) -> RecoveryPlan:
    """The methods, with the text as training reads it.

    It is unpacked, and has answers of the exported model where the task needs them.

    Args:
        plan: with the text as it was opened.
        dense: the exported dense model, for tasks that learn from its answers.
        context: how to compute.
    """
    text = plan.text
    if text is None:
        return plan
    steps, files = context.steps, list[Path]()
    folder, path = steps.state, text.lines.path
    if text.lines.is_packed:
        title = f"unpacking {path.name}"
        unpacked = steps.do(unpack, title=title, into=folder, text=text, context=context)
        text = text.unpacked(unpacked)
        files.append(unpacked)
    if text.task.learns_from_answers:
        given = extra_text(plan.methods)
        assert given is not None
        assert dense is not None
        title = f"answering {path.name} with the dense model"
        inputs = dense, given.beams
        translations = steps.do(
            translate, *inputs, title=title, shared=True, into=folder, text=text, context=context
        )
        text = text.translated(translations)
        files.append(translations)
    return RecoveryPlan(plan.methods, files, text)


def unpack(*, directory: Path, text: Text, context: Context) -> OutputPath:
    """Write the unpacked text."""
    path = directory / "distill-text.unpacked"
    text.lines.unpack(path, partial(context.progress.update, "MiB unpacked"))
    return path


def translate(
    dense: Exported, beams: int, *, directory: Path, text: Text, context: Context
) -> OutputPath:
    """Write the exported dense model's translations: on a CPU several times as fast as PyTorch.

    Args:
        dense: the exported dense model.
        beams: the width of their search.
        directory: for the translations.
        text: to translate.
        context: how to compute.
    """
    path = directory / "translations.txt"
    scratch = context.state_file(path.name)
    assert scratch is not None
    runtime = text.task.open(dense.directory, precision=BASE, device=context.device)
    with one_warning_of_cut():
        translate_lines(
            text.lines,
            scratch,
            partial(text.task.answer, runtime, num_beams=beams),
            chunk_rows=None if context.device == "cpu" else GPU_CHUNK_ROWS,
            progress=partial(context.progress.update, "lines answered"),
        )
    parallel.on_main(lambda: scratch.replace(path))
    return path
