"""The tasks: each is one folder that says everything about itself; see `compressor.tasks.base`.

To add one, write a subclass of `Task` and add a line to `TASKS`, or from outside this package call
`TASKS.register`. Nothing here imports torch until tensors are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compressor.errors import UsageError
from compressor.options.table import Table
from compressor.tasks.answering import Timed
from compressor.tasks.base import Task
from compressor.tasks.batching import Batch, Example, count_truncated
from compressor.tasks.learning import Objective
from compressor.tasks.rows import Rows, count_shared, split_rows

if TYPE_CHECKING:
    from compressor.model.checkpoint import Checkpoint

__all__ = [
    "TASKS", "Batch", "Example", "Objective", "Rows", "Task", "Timed", "count_shared",
    "count_truncated", "require_task", "split_rows",
]  # fmt: skip

TASKS: Table[Task] = Table(
    "task",
    {
        "translation": "compressor.tasks.translation.task:TASK",
        "classification": "compressor.tasks.classification.task:TASK",
        "embedding": "compressor.tasks.embedding.task:TASK",
        "token-classification": "compressor.tasks.token_classification.task:TASK",
        "regression": "compressor.tasks.regression.task:TASK",
        "reranking": "compressor.tasks.reranking.task:TASK",
        "multilabel": "compressor.tasks.multilabel.task:TASK",
        "question-answering": "compressor.tasks.question_answering.task:TASK",
        "summarization": "compressor.tasks.summarization.task:TASK",
    },
    id="task-unknown",
)


def require_task(checkpoint: Checkpoint) -> Task:
    """The task that a checkpoint was opened for, which must be possible with it.

    Raises:
        UsageError: an unknown task, or one for other models.
        InputError: the model answers in a way that the task does not know.
    """
    task = TASKS[checkpoint.task]
    if task.auto_class != checkpoint.entry.auto_class:
        raise UsageError(
            f"--task {task.name} does not fit {checkpoint.name}, a {checkpoint.entry.task} model; "
            "leave it out",
            id="task-of-another-model",
        )
    task.require(checkpoint.model.config, checkpoint.directory)
    task.require_tokenizer(checkpoint.tokenizer, checkpoint.directory)
    return task
