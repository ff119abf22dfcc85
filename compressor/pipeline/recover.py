"""The recovery of pruned models, and the text of `--distill-text` that it may learn from.

The text is checked before the run starts and translated once by the dense model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from compressor import parallel, recovery
from compressor.errors import UsageError
from compressor.export.precision_names import BASE
from compressor.model.checkpoint import Checkpoint
from compressor.model.modes import evaluating
from compressor.model.pruning_record import read_pruning_record
from compressor.model.sublayers import Mask
from compressor.model.surgery import left_of
from compressor.pipeline.inputs import ModelAndRows
from compressor.progress import Progress
from compressor.recovery import (
    Recovered,
    RecoveryJob,
    RecoveryMethod,
    earlier_artifact,
    extra_text,
)
from compressor.request.sections import Columns
from compressor.results import Variant
from compressor.steps import Steps
from compressor.storage.files import written_at_once
from compressor.tasks import Rows, Task
from compressor.tasks.texts import columns_of
from compressor.training.data import (
    GPU_CHUNK_ROWS,
    Text,
    TextLines,
    require_enough,
    translate_lines,
)

if TYPE_CHECKING:
    from torch import nn


def recover(
    methods: Sequence[RecoveryMethod],
    source: ModelAndRows,
    pruned: nn.Module,
    mask: Mask,
    *,
    seed: int,
    device: str,
    progress: Progress,
    text: Text | None = None,
    state: Path | None = None,
) -> Recovered:
    """Recover a pruned model, but for layers that it skips.

    Args:
        source: the dense model, and calibration rows.
        mask: the units that the pruned model has.
        text: to distill from; for a translator with its translations.
        state: file from which a stopped training goes on; None for none.
    """
    job = RecoveryJob(
        dense=source.checkpoint.model,
        pruned=pruned,
        mask=mask,
        layers=left_of(pruned, source.checkpoint.layers),
        task=source.task,
        examples=source.examples,
        seed=seed,
        device=device,
        progress=partial(progress.update, "recovery"),
        report=progress.message,
        state=state,
        text=text,
    )
    return recovery.recover(methods, job)


def require_trainable(
    methods: Sequence[RecoveryMethod], rows: int, *, learns: bool = False
) -> None:
    """Raise `InputError` for too few rows to train on, or without the artifact to start from."""
    if learns or any(step.trains for step in methods):
        require_enough(rows)
    directory = earlier_artifact(methods)
    if directory is not None:
        read_pruning_record(directory)


def open_text(
    methods: Sequence[RecoveryMethod],
    rows: Rows | None,
    task: Task,
    checkpoint: Checkpoint,
    section: Columns,
    progress: Progress,
) -> Text | None:
    """The text to distill from, all lines checked; None if none is given.

    Args:
        rows: calibration rows; where they are pairs of texts, lines are pairs, too.
        section: names the columns of JSONL.
    """
    text = extra_text(methods)
    if text is None:
        return None
    if not task.one_example_per_row:
        raise UsageError(
            f"--distill-text {text.path}: a line would need the parts of its own that rows for "
            f"{task.name} have; leave it out, and give more --calibration rows",
            id="text-for-other-tasks",
        )
    pairs = task.joins_pairs and rows is not None and bool(rows.pairs)
    return Text(
        lines=TextLines(
            text.path,
            columns=columns_of(task, task.inputs[: 2 if pairs else 1], section.columns()),
            pairs=pairs,
            progress=lambda done: progress.update("lines read", done, None),
        ),
        task=task,
        tokenizer=checkpoint.tokenizer,
        max_tokens=checkpoint.max_source_tokens,
        labels=task.label_names(checkpoint.model.config),
    )


def text_to_learn(
    text: Text | None,
    methods: Sequence[RecoveryMethod],
    dense: Variant,
    device: str,
    steps: Steps,
) -> tuple[Text | None, str]:
    """A run's text, unpacked, and translated for a translator; SHA-256 of the translations."""
    translations = ""
    if text is not None and text.lines.is_packed:
        path = steps.state / "distill-text.unpacked"
        title = f"unpacking {text.lines.path.name}"
        steps.do(unpack, title=title, lines=text.lines, path=path, steps=steps)
        text = text.unpacked(path)
    if text is not None and text.task.learns_from_answers:
        path, beams = steps.state / "translations.txt", text_beams(methods)
        title = f"answering {text.lines.path.name} with the dense model"
        translations = steps.do(
            translate, beams, dense, title=title, shared=True, text=text, path=path, device=device,
            steps=steps,
        )  # fmt: skip
        text = text.translated(path)
    return text, translations


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
    file, progress = text.lines.path, steps.progress
    warned = False

    def answers(texts: Sequence[str]) -> list[str]:
        nonlocal warned
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            translations = text.task.answer(runtime, texts, num_beams=beams)
        if caught and not warned:
            warned = True
            progress.message(f"  lines of {file} with more than {text.max_tokens} tokens are cut")
        return translations

    scratch = steps.scratch / path.name
    _write_answers(text, scratch, answers, device, progress)
    parallel.on_main(lambda: scratch.replace(path))
    return parallel.on_main(lambda: steps.wrote(path))


@contextmanager
def answered_by_pytorch(
    text: Text | None, beams: int, checkpoint: Checkpoint, device: str, progress: Progress
) -> Iterator[Text | None]:
    """The text, unpacked, and for a translator with translations, as long as the context lasts.

    For single commands, which export no model and keep no state: files are temporary.
    """
    if text is None or not (text.task.learns_from_answers or text.lines.is_packed):
        yield text
        return
    with TemporaryDirectory(prefix="compress-") as name:
        if text.lines.is_packed:
            path = Path(name) / "text"
            text.lines.unpack(path, partial(progress.update, "MiB unpacked"))
            text = text.unpacked(path)
        if text.task.learns_from_answers:
            path = Path(name) / "translations.txt"
            _translate_by_pytorch(text, path, beams, checkpoint, device, progress)
            text = text.translated(path)
        yield text


def _translate_by_pytorch(
    text: Text, path: Path, beams: int, checkpoint: Checkpoint, device: str, progress: Progress
) -> None:
    model, task = checkpoint.model, text.task

    def answers(texts: Sequence[str]) -> list[str]:
        # There are no targets yet; the sources in their place change no input.
        rows = Rows(task.name, list(texts), None, list(texts), [], "")
        translations = [""] * len(texts)
        examples = task.encode(rows, text.tokenizer, text.max_tokens)
        for batch in task.batches(examples, model, device=device):
            lines = task.predict(model, batch.to(device), text.tokenizer, beams)
            for row, line in zip(batch.rows, lines, strict=True):
                translations[row] = line
        return translations

    with evaluating(model):
        try:
            model.to(device)
            _write_answers(text, path, answers, device, progress)
        finally:
            model.to("cpu")


def _write_answers(
    text: Text,
    path: Path,
    answers: Callable[[Sequence[str]], list[str]],
    device: str,
    progress: Progress,
) -> None:
    chunk_rows = None if device == "cpu" else GPU_CHUNK_ROWS
    report = partial(progress.update, "lines answered")
    translate_lines(text.lines, path, answers, chunk_rows=chunk_rows, progress=report)


def text_beams(methods: Sequence[RecoveryMethod]) -> int:
    """Beam width of the dense model's translations."""
    text = extra_text(methods)
    return 1 if text is None else text.beams
