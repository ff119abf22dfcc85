"""The tasks: each is one class with everything about it; see `compressor.tasks.base`.

To add one, write a subclass of `Task` and add a line to `TASKS`, or from outside this package call
`TASKS.register`. Nothing here imports torch until tensors are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compressor.errors import UsageError
from compressor.options.table import Table
from compressor.tasks.base import Objective, Task, Timed
from compressor.tasks.batching import Batch, Example, count_truncated
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
        "translation": "compressor.tasks.encoder_decoder:TRANSLATION",
        "classification": "compressor.tasks.classification:CLASSIFICATION",
        "embedding": "compressor.tasks.embedding:EMBEDDING",
        "token-classification": "compressor.tasks.token_classification:TOKEN_CLASSIFICATION",
        "regression": "compressor.tasks.scores:REGRESSION",
        "reranking": "compressor.tasks.scores:RERANKING",
        "multilabel": "compressor.tasks.classification:MULTILABEL",
        "question-answering": "compressor.tasks.question_answering:QUESTION_ANSWERING",
        "summarization": "compressor.tasks.encoder_decoder:SUMMARIZATION",
    },
    id="task-unknown",
)


def require_task(checkpoint: Checkpoint) -> Task:
    """The task of a checkpoint.

    Raises:
        UsageError: an unknown task, or one for other models.
        InputError: the model's outputs do not fit the task.
    """
    task = TASKS[checkpoint.task]
    if task.auto_class != checkpoint.entry.auto_class:
        raise UsageError(
            f"--task {task.name} does not fit {checkpoint.name}, a {checkpoint.entry.task} model; "
            "leave it out",
            id="task-of-another-model",
        )
    task.require(checkpoint)
    return task
