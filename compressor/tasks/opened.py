"""A model and its rows, opened: what a command starts from, and batches to check every build on."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compressor import parallel
from compressor.errors import InputError
from compressor.model.architecture import decoder_tokens
from compressor.model.checkpoint import Checkpoint
from compressor.progress import SILENT, Progress
from compressor.tasks import TASKS, Batch, Example, Rows, Task
from compressor.tasks.batching import count_truncated
from compressor.tasks.rows import Reading, count_shared
from compressor.tasks.texts import TextFile

if TYPE_CHECKING:
    from torch import Tensor, nn

CHECKED_BATCHES = 4
CHECKED_ROWS = 8  # per batch


@dataclass(frozen=True)
class DataRows:
    """The rows of a run."""

    calibration: Rows | None
    test: Rows | None  # that quality and speed are measured on
    search: Rows | None = None  # that a search for a budget looks at; no test rows

    @property
    def shared(self) -> int:
        """Number of test rows whose texts are calibration rows too."""
        return count_shared(self.test, self.calibration) if self.calibration and self.test else 0

    @property
    def fitted(self) -> Rows:
        """The rows to score and check builds on: calibration rows, else other rows of the run."""
        rows = self.calibration or self.search or self.test
        assert rows is not None
        return rows

    @property
    def timed(self) -> Rows:
        """The rows to time on: test rows, else those of `fitted`."""
        return self.test or self.fitted


@dataclass(frozen=True)
class Inputs:
    """What a run was started with, as its report names it."""

    checkpoint: Checkpoint  # the dense model
    data: DataRows
    reading: Reading  # how texts without answers are read
    source_text: TextFile | None  # whose tokens are kept
    target_text: TextFile | None  # whose tokens decoders of pruned models score


@dataclass(frozen=True)
class ModelAndRows:
    """A checkpoint, and the rows that its units are scored and recovered on."""

    checkpoint: Checkpoint
    examples: Sequence[Example] = ()  # the rows in the checkpoint's tokens
    rows: Rows | None = None
    batches: Sequence[Batch] = ()  # ragged, on which every build is compared with its reference
    calibrated: bool = True  # whether they are calibration rows

    @property
    def task(self) -> Task:
        """The task of the checkpoint."""
        return TASKS[self.checkpoint.task]

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration of the model, as its `config.json` has it."""
        config: Any = self.checkpoint.model.config
        values: dict[str, Any] = config.to_dict()
        return values

    @property
    def texts(self) -> tuple[Sequence[str], Sequence[str] | None]:
        """Texts to compare tokenizers on, and a second text of each for tasks that read pairs."""
        return ((), None) if self.rows is None else (self.rows.sources, self.rows.pairs)

    @property
    def inputs(self) -> list[Mapping[str, Tensor]]:
        """The arguments of a model's forward, of every batch to check."""
        return [batch.inputs() for batch in self.batches]


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


def with_rows(
    checkpoint: Checkpoint,
    rows: Rows | None,
    *,
    calibrated: bool = True,
    progress: Progress = SILENT,
) -> ModelAndRows:
    """Encode the rows to score, recover and check on; without any, random tokens are checked on.

    Args:
        checkpoint: the model.
        rows: to encode; None: there are none.
        calibrated: whether they are calibration rows.
        progress: receives messages.

    Raises:
        InputError: there are too few for the processes that share them.
    """
    task = TASKS[checkpoint.task]
    examples = [] if rows is None else encode(rows, checkpoint, task, progress)
    if rows is None:
        batches = random_check_batches(checkpoint, task)
    else:
        require_rows_for_ranks(len(examples))
        batches = make_check_batches(examples, checkpoint.model, task)
    return ModelAndRows(checkpoint, examples, rows, batches, calibrated)


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


def require_rows_for_ranks(rows: int) -> None:
    """Raise `InputError` if a rank would have no row, also when half of the rows are held out."""
    if rows < 2 * parallel.size():
        raise InputError(
            f"{rows} calibration rows are too few for {parallel.size()} processes, which take two "
            "each at least; give more rows, or start fewer processes",
            id="fewer-rows-than-ranks",
        )
