"""The repair after a cut, and the text of `--distill-text` that it may learn from.

The text is checked before the run starts and translated once by the dense model. Within a run the
exported dense model translates, several times as fast on the CPU as PyTorch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from compressor.errors import UsageError
from compressor.export.precision_names import BASE
from compressor.model.checkpoint import Checkpoint
from compressor.model.depth import left_of
from compressor.model.location import checkpoint_files
from compressor.model.modes import evaluating
from compressor.model.pruning_record import read_pruning_record
from compressor.model.sublayers import Mask
from compressor.pipeline.stages import stage, weights_file
from compressor.progress import Progress
from compressor.recovery import (
    Recovered,
    RecoveryJob,
    RecoveryMethod,
    earlier_artifact,
    extra_text,
    recover,
)
from compressor.recovery.translations import GPU_CHUNK_ROWS, translate_lines
from compressor.request.sections import Columns
from compressor.results import Source, Variant
from compressor.storage.files import written_at_once
from compressor.storage.hashes import fingerprint, sha256_of
from compressor.storage.workspace import Workspace
from compressor.tasks import TASKS, Example, Rows, Task
from compressor.tasks.texts import columns_of
from compressor.training.text import Text, TextLines

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Repair:
    """Recovery methods, and the checkpoint whose model they bring a pruned one close to.

    Args:
        examples: calibration rows, encoded.
        state: directory for files from which a stopped training goes on; None for none.
        text: to distill from, of a translator with its translations.
    """

    steps: Sequence[RecoveryMethod]
    checkpoint: Checkpoint
    examples: Sequence[Example]
    seed: int
    device: str
    progress: Progress
    state: Path | None = None
    text: Text | None = None

    def __str__(self) -> str:
        """`, repairing (reconstruct)`, for messages; empty where nothing is repaired."""
        names = "+".join(step.name for step in self.steps)
        return f", repairing ({names})" if names else ""

    def run(self, pruned: nn.Module, mask: Mask, name: str = "model") -> Recovered:
        """Repair a pruned model; of layers that it skips nothing is repaired or matched.

        Args:
            mask: the units that it has.
            name: of the model, for the file from which a stopped training goes on.
        """
        progress, task = self.progress, TASKS[self.checkpoint.task]
        job = RecoveryJob(
            dense=self.checkpoint.model,
            pruned=pruned,
            mask=mask,
            layers=left_of(pruned, self.checkpoint.layers),
            task=task,
            examples=self.examples,
            seed=self.seed,
            device=self.device,
            progress=lambda done, total: progress.update("repair", done, total),
            report=progress.message,
            state=self.state and self.state / f"repair-{name}.safetensors",
            text=self.text,
        )
        return recover(self.steps, job)


def require_rows_to_train(
    recovery: Sequence[RecoveryMethod], rows: int, *, learns: bool = False
) -> None:
    """Raise `InputError` if something is trained, and there are too few calibration rows for it.

    Args:
        learns: a mask is learned.
    """
    if learns or any(step.trains for step in recovery):
        from compressor.training.data import require_enough

        require_enough(rows)


def require_earlier(recovery: Sequence[RecoveryMethod]) -> None:
    """Raise `InputError` if there is no artifact in the directory whose weights are wanted."""
    directory = earlier_artifact(recovery)
    if directory is not None:
        read_pruning_record(directory)


def open_text(
    recovery: Sequence[RecoveryMethod],
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

    Raises:
        InputError: see `TextLines`.
    """
    text = extra_text(recovery)
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


def unpacked_bytes(text: Text | None) -> int:
    """How much unpacking the text writes; 0 where there is none, or it is not packed."""
    return text.lines.size if text is not None and text.lines.is_packed else 0


def with_unpacked_text(repair: Repair, workspace: Workspace) -> Repair:
    """The repair of a run, its text unpacked to `OUT/.compress` if it is packed."""
    text = repair.text
    if text is None or not text.lines.is_packed:
        return repair
    _unpack(workspace, text.lines)
    return replace(repair, text=text.unpacked(weights_file(workspace, "unpacked-text")))


@stage("unpacked-text")
def _unpack(workspace: Workspace, lines: TextLines) -> int:
    """Write the unpacked text; how many lines of it hold text."""
    with written_at_once(weights_file(workspace, "unpacked-text")) as path:
        lines.unpack(path, partial(workspace.progress.update, "MiB unpacked"))
    return lines.rows


def with_translations(repair: Repair, workspace: Workspace, dense: Variant) -> Repair:
    """The repair of a run, its text translated where there is one and the model translates."""
    text = repair.text
    if text is None or not text.task.learns_from_answers:
        return repair
    beams = text_beams(repair.steps)
    _translate(workspace, text, repair.checkpoint, dense, beams, repair.device)
    return replace(repair, text=text.translated(weights_file(workspace, "distill-text")))


@stage("distill-text")
def _translate(
    workspace: Workspace,
    text: Text,
    checkpoint: Checkpoint,
    dense: Variant,
    beams: int,
    device: str,
) -> Source:
    runtime = text.task.open(dense.directory, precision=BASE, device=device)
    path, progress = text.lines.path, workspace.progress
    sha256 = sha256_of(path, partial(progress.update, f"MiB of {path.name} hashed"))
    warned = False

    def answers(texts: Sequence[str]) -> list[str]:
        nonlocal warned
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            translations = text.task.answer(runtime, texts, num_beams=beams)
        if caught and not warned:
            warned = True
            progress.message(f"  lines of {path} with more than {text.max_tokens} tokens are cut")
        return translations

    weights = fingerprint(checkpoint_files(checkpoint.directory))
    translate_lines(
        text.lines,
        weights_file(workspace, "distill-text"),
        answers,
        key=f"{sha256} {weights} {beams}",
        chunk_rows=None if device == "cpu" else GPU_CHUNK_ROWS,
        progress=partial(progress.update, "lines answered"),
    )
    return Source(files=[path.as_posix()], rows=text.rows, sha256=sha256)


@contextmanager
def answered_by_pytorch(
    text: Text | None, beams: int, checkpoint: Checkpoint, device: str, progress: Progress
) -> Iterator[Text | None]:
    """The text, unpacked, and for a translator with translations, as long as the context lasts.

    For single steps, which have no exported model and no directory to go on from. What the text
    must be unpacked to, and translations, lie in a temporary directory.
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
    """Write the dense model's translations of a text."""
    model, task = checkpoint.model, text.task

    def answers(texts: Sequence[str]) -> list[str]:
        # The answers are not there yet; that the sources stand in for them changes no input.
        rows = Rows(task.name, list(texts), None, list(texts), [], "")
        found = [""] * len(texts)
        examples = task.encode(rows, text.tokenizer, text.max_tokens)
        for batch in task.batches(examples, model, device=device):
            lines = task.predict(model, batch.to(device), text.tokenizer, beams)
            for row, line in zip(batch.rows, lines, strict=True):
                found[row] = line
        return found

    with evaluating(model):
        try:
            model.to(device)
            translate_lines(
                text.lines,
                path,
                answers,
                chunk_rows=None if device == "cpu" else GPU_CHUNK_ROWS,
                progress=partial(progress.update, "lines answered"),
            )
        finally:
            model.to("cpu")


def text_beams(recovery: Sequence[RecoveryMethod]) -> int:
    """Beam width of the dense model's translations."""
    text = extra_text(recovery)
    return 1 if text is None else text.beams
