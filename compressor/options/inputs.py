"""The model and the rows that a request names, opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from compressor.evaluation import require_references, with_tokenizers
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.languages import (
    direction,
    require_said,
    set_languages,
    set_prefix,
    text_codes,
)
from compressor.options.bounds import MINIMUM_ROWS
from compressor.options.recipe import Recipe
from compressor.options.sections import Columns, Export, ModelSection
from compressor.options.validate import check_options
from compressor.progress import SILENT, Progress
from compressor.report import sentences
from compressor.tasks import TASKS, Rows, Task, require_task
from compressor.tasks.opened import DataRows, Inputs, ModelAndRows, with_rows
from compressor.tasks.rows import Reading, rows_to_search_on
from compressor.tasks.texts import SOURCE, TARGET, TextFile, texts_of


def load(section: ModelSection, *, dense: bool = True, answers: bool = True) -> Checkpoint:
    """Open the checkpoint that a request names.

    Args:
        section: where the checkpoint is, its task and its languages.
        dense: refuse one that has lost units already.
        answers: refuse a translator whose target language nothing states.
    """
    auto_class = None if section.task is None else TASKS[section.task].auto_class
    checkpoint = open_checkpoint(
        section.path, task=section.task, auto_class=auto_class, dense=dense, **section.access()
    )
    check_options([section], require_task(checkpoint), checkpoint.name)
    source, target = section.source_language, section.target_language
    network, tokenizer = checkpoint.model, checkpoint.tokenizer
    set_languages(network, tokenizer, checkpoint.entry, source, target, checkpoint.name)
    if section.prefix is not None:
        # Behind the code of a language, where a text starts with one.
        code = text_codes(tokenizer).get(target or "")
        set_prefix(tokenizer, section.prefix if code is None else f"{code} {section.prefix}")
    if answers and checkpoint.entry.decoder is not None:
        require_said(network, tokenizer, checkpoint.entry, checkpoint.name)
    return checkpoint


def open_inputs(recipe: Recipe, checkpoint: Checkpoint, progress: Progress) -> Inputs:
    """Open the texts and the rows of a recipe, and check them.

    Args:
        recipe: with what device and model decide.
        checkpoint: the model.
        progress: receives messages.
    """
    task, how = TASKS[checkpoint.task], reading(recipe.data, checkpoint)
    source_text, target_text = texts_to_keep(recipe.export, task, how, progress)
    data = read(recipe.data, checkpoint, how, progress, recipe.evaluation.tokenizers)
    if recipe.budget.searches_rows and data.test is not None:
        search, held_out = rows_to_search_on(data.test, recipe.seed)
        data = DataRows(data.calibration, held_out, search)
    if warning := sentences.warning_of_shared_rows(data):
        progress.message(warning)
    return Inputs(checkpoint, data, how, source_text, target_text)


def reading(section: Columns, checkpoint: Checkpoint) -> Reading:
    """How texts without answers are read for a checkpoint."""
    return section.reading(direction(checkpoint.tokenizer))


def texts_to_keep(
    export: Export, task: Task, how: Reading, progress: Progress = SILENT
) -> tuple[TextFile | None, TextFile | None]:
    """The texts whose tokens encoders and decoders keep, if given; all lines are checked."""
    files = list[TextFile | None]()
    for option, path in ((SOURCE, export.source_text), (TARGET, export.target_text)):
        file = None if path is None else texts_of(Path(path), option, task, how)
        if file is not None:
            if file.said:
                progress.message(file.said)
            file.count(lambda done: progress.update("lines read", done, None))
        files.append(file)
    source, target = files
    return source, target


def read(
    section: Columns,
    checkpoint: Checkpoint,
    how: Reading,
    progress: Progress = SILENT,
    tokenizers: Mapping[str, str] | None = None,
) -> DataRows:
    """Calibration and test rows, as far as a command takes them and they are given.

    Args:
        section: the files, and their columns.
        checkpoint: whose labels the rows have.
        how: texts are read for it.
        progress: receives messages.
        tokenizers: metric -> what is to split texts for it; the one for the test rows by default.

    Raises:
        InputError: malformed data, with file and line.
        UsageError, EnvironmentProblem: an unknown or missing tokenizer.
    """
    task = TASKS[checkpoint.task]

    def rows_of(name: str) -> Rows | None:
        file = getattr(section, name, None)
        if file is None:
            return None
        rows = task.read_rows(
            file,
            labels=task.label_names(checkpoint.model.config),
            languages=how.languages,
            minimum=MINIMUM_ROWS,
            limit=getattr(section, f"{name}_rows"),
            progress=lambda done: progress.update("rows read", done, None),
            **section.columns(),
        )
        progress.message(rows.said)
        return rows

    calibration, test = rows_of("calibration"), rows_of("test")
    if task.joins_pairs and any(rows and rows.pairs for rows in (calibration, test)):
        checkpoint.require_pairs()
    if test is not None:
        task.require_answers(test)
        require_references(test)
        test = with_tokenizers(test, tokenizers, progress.message)
    if calibration is not None and test is not None:
        calibration = replace(calibration, tokenizers=test.tokenizers)
    elif calibration is not None:
        calibration = with_tokenizers(calibration, tokenizers)
    return DataRows(calibration, test)


def calibration_rows(
    section: Columns, checkpoint: Checkpoint, progress: Progress = SILENT
) -> Rows | None:
    """The calibration rows of a single command, if any."""
    check_options([section], TASKS[checkpoint.task], checkpoint.name)
    return read(section, checkpoint, reading(section, checkpoint), progress).calibration


def with_calibration(
    section: Columns, checkpoint: Checkpoint, progress: Progress = SILENT
) -> ModelAndRows:
    """A checkpoint with the calibration rows of a single command, if any."""
    rows = calibration_rows(section, checkpoint, progress)
    return with_rows(checkpoint, rows, progress=progress)
