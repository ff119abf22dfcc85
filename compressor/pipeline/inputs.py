"""What a command starts from: the model, the rows, encoded, and batches to check every build on."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from compressor.errors import EnvironmentProblem, InputError, UsageError
from compressor.evaluation import require_references, with_tokenizers
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import BYTES_PER_WEIGHT
from compressor.model.architecture import decoder_tokens
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.languages import (
    direction,
    require_said,
    set_languages,
    set_prefix,
    text_codes,
)
from compressor.model.weights import count_parameters
from compressor.options.bounds import MINIMUM_ROWS
from compressor.options.sections import Columns, ModelSection
from compressor.options.validate import check_options
from compressor.pipeline.values import DataRows, ModelAndRows
from compressor.progress import SILENT, Progress
from compressor.report import sentences
from compressor.runtime.engines.pytorch import PyTorch
from compressor.runtime.session import choose_device
from compressor.tasks import TASKS, Batch, Example, Rows, Task, require_task
from compressor.tasks.batching import count_truncated
from compressor.tasks.rows import split_rows

if TYPE_CHECKING:
    from torch import nn

CHECKED_BATCHES = 4
CHECKED_ROWS = 8  # per batch


def load(section: ModelSection, *, dense: bool = True, answers: bool = True) -> Checkpoint:
    """Open the checkpoint that a request names.

    Args:
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


def read(
    section: Columns,
    checkpoint: Checkpoint,
    task: Task,
    progress: Progress = SILENT,
    tokenizers: Mapping[str, str] | None = None,
) -> DataRows:
    """Calibration and test rows, as far as a command takes them and they are given.

    Args:
        tokenizers: metric -> what is to split texts for it; the one for the test rows by default.

    Raises:
        InputError: malformed data, with file and line.
        UsageError, EnvironmentProblem: an unknown or missing tokenizer.
    """

    def rows_of(name: str) -> Rows | None:
        file = getattr(section, name, None)
        if file is None:
            return None
        rows = task.read_rows(
            file,
            labels=task.label_names(checkpoint.model.config),
            languages=direction(checkpoint.tokenizer),
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


def hold_out(data: DataRows, seed: int) -> DataRows:
    """The rows with the test rows in two: those to search on, and those held out as test rows."""
    assert data.test is not None
    search, test = split_rows(data.test, seed)
    (searched, what), (held, _) = search.counted, test.counted
    if min(searched, held) < MINIMUM_ROWS:
        raise InputError(
            f"{', '.join(data.test.files)}: too few test {what}, {searched + held}, of which "
            f"{searched} would be searched on and {held} held out; --max-drop needs {MINIMUM_ROWS} "
            "of each, and rows with the same text stay together",
            id="too-few-rows",
        )
    return DataRows(data.calibration, test, search)


def warn_of_shared_rows(data: DataRows, progress: Progress) -> None:
    """Warn if test rows are calibration rows, too."""
    shared = data.shared
    if shared and data.test is not None:
        text = sentences.shared_rows(shared, len(data.test.sources))
        progress.message(f"warning: {text}; give other --test rows")


def encode(
    rows: Rows, checkpoint: Checkpoint, task: Task, progress: Progress = SILENT
) -> list[Example]:
    """Token ids of rows, as long as the model allows; reports how many are cut."""
    examples = task.encode(rows, checkpoint.tokenizer, checkpoint.max_source_tokens)
    cut = count_truncated(examples)
    if cut:
        progress.message(
            f"{cut} of {len(examples)} rows are longer than the model allows and were cut"
        )
    return examples


def pick_device(wanted: str, progress: Progress) -> str:
    """The device to compute on with torch and onnxruntime alike; a named one must do for both."""
    device = choose_device(wanted)
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        problem = f"onnxruntime can use the GPU, but torch {torch.__version__} cannot"
        if wanted == "cuda":
            raise EnvironmentProblem(
                f"{problem}; install a CUDA build of torch, or --device cpu",
                id="torch-without-cuda",
            )
        progress.message(f"{problem}: everything runs on the CPU")
        return "cpu"
    return device


def with_rows(
    checkpoint: Checkpoint,
    rows: Rows | None,
    *,
    calibrated: bool = True,
    progress: Progress = SILENT,
) -> ModelAndRows:
    """Encode the rows to score, recover and check on; without any, random tokens are checked on."""
    task = TASKS[checkpoint.task]
    examples = [] if rows is None else encode(rows, checkpoint, task, progress)
    if rows is None:
        batches = random_check_batches(checkpoint, task)
    else:
        batches = make_check_batches(examples, checkpoint.model, task)
    return ModelAndRows(checkpoint, examples, rows, batches, calibrated)


def calibration_rows(
    section: Columns, checkpoint: Checkpoint, progress: Progress = SILENT
) -> Rows | None:
    """The calibration rows of a single command, if any."""
    task = TASKS[checkpoint.task]
    check_options([section], task, checkpoint.name)
    return read(section, checkpoint, task, progress).calibration


def with_calibration(
    section: Columns, checkpoint: Checkpoint, progress: Progress = SILENT
) -> ModelAndRows:
    """A checkpoint with the calibration rows of a single command, if any."""
    rows = calibration_rows(section, checkpoint, progress)
    return with_rows(checkpoint, rows, progress=progress)


def make_check_batches(examples: Sequence[Example], model: nn.Module, task: Task) -> list[Batch]:
    """A few batches over the whole range of lengths, short and long rows side by side."""
    count = min(len(examples), CHECKED_BATCHES * CHECKED_ROWS)
    by_length = sorted(range(len(examples)), key=lambda i: (len(examples[i].source), i))
    chosen = [by_length[i * len(examples) // count] for i in range(count)]
    # Every fourth of the sorted rows: each batch pads rows of all lengths.
    ragged = [chosen[i::CHECKED_BATCHES] for i in range(min(CHECKED_BATCHES, count))]
    return [
        batch
        for members in ragged
        for batch in task.batches(
            [examples[i] for i in members], model, batch_tokens=None, batch_size=CHECKED_ROWS
        )
    ]


def random_check_batches(checkpoint: Checkpoint, task: Task) -> list[Batch]:
    """Batches of random tokens, for commands without rows."""
    rng = random.Random(0)
    tokenizer, model = checkpoint.tokenizer, checkpoint.model
    special = set(tokenizer.all_special_ids)
    # Texts of BERT and its relatives end with a separator, others with an end token.
    end = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
    # Tokens of sources and targets alike, of which a Marian model may have different numbers.
    size = min(len(tokenizer), decoder_tokens(model.config))
    ids = [i for i in range(size) if i not in special]

    def sentence(length: int) -> tuple[int, ...]:
        return (*rng.choices(ids, k=length), end)

    examples = [task.synthetic_example(row, sentence) for row in range(CHECKED_ROWS * 2)]
    return task.batches(examples, model, batch_tokens=None, batch_size=CHECKED_ROWS)


def require_engines(names: Sequence[str], task: Task, device: str = "cpu") -> None:
    """Check, before anything long is computed, that engines run models of the task on a device."""
    for name in names:
        engine = task.engine(name)
        if engine.dense_only and not task.plain_logits:
            raise UsageError(
                f"the engine {name} runs no models for {task.name}; leave it out of --engines",
                id="engine-not-for-task",
            )
        if name != ONNXRUNTIME:
            engine.library()
            engine.choose_device(device)


def engines_to_measure(engines: Sequence[str], task: Task, device: str, timed: bool) -> list[str]:
    """The engines of a run: those that were asked for, and where a GPU is timed PyTorch, too.

    Without it the dense model might look slower than what a user has already.
    """
    measured, rival = list(engines), PyTorch.name
    if timed and device == "cuda" and rival not in measured and task.plain_logits:
        measured += [rival] * PyTorch.library().cuda.is_available()
    return measured


def export_bytes(model: nn.Module, precisions: Sequence[str]) -> int:
    """About how large the graphs of a model are, in all the precisions together."""
    return sum(count_parameters(model) * BYTES_PER_WEIGHT[name] for name in precisions)
