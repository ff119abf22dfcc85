"""The text of `--distill-text`: checked before the run starts, translated once by the dense model.

Within a run the exported dense model translates, several times as fast on the CPU as PyTorch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from compressor.errors import UsageError
from compressor.export.metadata import max_source_tokens
from compressor.export.precision_names import BASE
from compressor.model.checkpoint import Checkpoint
from compressor.model.location import checkpoint_files
from compressor.model.modes import evaluating
from compressor.pipeline.context import Context
from compressor.pipeline.stages import stage, weights_file
from compressor.progress import Progress
from compressor.recovery.text import Text, TextLines
from compressor.recovery.translations import translate_lines
from compressor.request.methods import RecoverySection
from compressor.results import Source, Variant
from compressor.runtime import Translator
from compressor.storage.hashes import fingerprint, sha256_of
from compressor.tasks import Rows, Task


def text_path(recovery: Sequence[RecoverySection]) -> Path | None:
    """The file that `--distill-text` names, if it is given."""
    for step in recovery:
        if getattr(step, "text", None) is not None:
            return Path(step.text)  # type: ignore[attr-defined]
    return None


def text_sha256(recovery: Sequence[RecoverySection]) -> str | None:
    """SHA-256 of that file."""
    path = text_path(recovery)
    return None if path is None else sha256_of(path)


def open_text(
    recovery: Sequence[RecoverySection], rows: Rows | None, task: Task, checkpoint: Checkpoint
) -> Text | None:
    """The text to distill from, all lines checked; None if none is given.

    Args:
        rows: calibration rows; where they are pairs of texts, lines are pairs, too.

    Raises:
        UsageError: a beam width for a model that does not translate.
        InputError: see `TextLines`.
    """
    path = text_path(recovery)
    if path is None:
        return None
    beams = text_beams(recovery)
    if not task.generates and beams != 1:
        raise UsageError(
            f"--distill-beams {beams} is for translators, and {checkpoint.name} is a {task.name} "
            "model; leave it out",
            id="option-without-use",
        )
    return Text(
        lines=TextLines(path, pairs=rows is not None and rows.pairs is not None),
        task=task,
        tokenizer=checkpoint.tokenizer,
        max_tokens=max_source_tokens(checkpoint),
        labels=task.label_names(checkpoint.model.config),
    )


def translate_text(context: Context, dense: Variant) -> None:
    """Translate the text of a run, if it has one and its model translates.

    Args:
        dense: the exported dense model.
    """
    if context.text is not None and context.task.generates:
        _translate(context, context.text, dense)


@stage("distill-text")
def _translate(context: Context, text: Text, dense: Variant) -> Source:
    translator = Translator(dense.directory, precision=BASE, device=context.device, verify=False)
    beams = text_beams(context.recipe.recovery)
    path, progress = text.lines.path, context.progress
    told: list[str] = []

    def answers(texts: Sequence[str]) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            translations = translator.translate(texts, num_beams=beams)
        if caught and not told:
            told.append(f"  lines of {path} with more than {text.max_tokens} tokens are cut")
            progress.message(told[0])
        return translations

    sha256 = sha256_of(path)
    weights = fingerprint(checkpoint_files(context.checkpoint.directory))
    translate_lines(
        text.lines,
        translations_file(context),
        answers,
        key=f"{sha256} {weights} {beams}",
        progress=lambda done, total: progress.update("lines translated", done, total),
    )
    return Source(files=[path.as_posix()], rows=text.rows, sha256=sha256)


def translations_file(context: Context) -> Path:
    """Where a run keeps the translations of its text."""
    return weights_file(context, "distill-text")


def text_of_run(context: Context) -> Text | None:
    """The text of a run with its translations, which are there (`translate_text`)."""
    if context.text is None or not context.task.generates:
        return context.text
    return context.text.translated(translations_file(context))


@contextmanager
def translated_by_pytorch(
    text: Text | None, beams: int, checkpoint: Checkpoint, device: str, progress: Progress
) -> Iterator[Text | None]:
    """The text, for a translator with translations that last as long as the context.

    For single steps, which have no exported model and no directory to go on from.

    Args:
        beams: beam width of the translations.
    """
    if text is None or not text.task.generates:
        yield text
        return
    model, task = checkpoint.model, text.task

    def answers(texts: Sequence[str]) -> list[str]:
        # The answers are not there yet; that the sources stand in for them changes no input.
        rows = Rows(task.name, list(texts), None, list(texts), [], "")
        found = [""] * len(texts)
        examples = task.encode(rows, text.tokenizer, text.max_tokens)
        for batch in task.batches(examples, model):
            lines = task.predict(model, batch.to(device), text.tokenizer, beams)
            for row, line in zip(batch.rows, lines, strict=True):
                found[row] = line
        return found

    with TemporaryDirectory(prefix="compress-") as directory:
        path = Path(directory) / "translations.txt"
        with evaluating(model):
            try:
                model.to(device)
                translate_lines(
                    text.lines,
                    path,
                    answers,
                    progress=lambda done, total: progress.update("lines translated", done, total),
                )
            finally:
                model.to("cpu")
        yield text.translated(path)


def text_beams(recovery: Sequence[RecoverySection]) -> int:
    """Beam width of the dense model's translations."""
    return max([getattr(step, "beams", 1) for step in recovery], default=1)
