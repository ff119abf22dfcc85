"""The tasks: each is one class with everything about it; see `compressor.tasks.base`.

From outside this package, `TASKS.register` adds one. Nothing imports torch until tensors are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compressor.errors import InputError, UsageError
from compressor.options.table import Table
from compressor.tasks.base import Objective, Predictor, Task, Timed
from compressor.tasks.batching import Batch, Example, count_truncated
from compressor.tasks.rows import Rows, count_shared, split_rows

if TYPE_CHECKING:
    from compressor.model.checkpoint import Checkpoint

__all__ = [
    "TASKS", "Batch", "Example", "Objective", "Predictor", "Rows", "Task", "Timed",
    "count_shared", "count_truncated", "require_task", "split_rows",
]  # fmt: skip

TASKS: Table[Task] = Table(
    "task",
    {
        "translation": "compressor.tasks.encoder_decoder:TRANSLATION",
        "classification": "compressor.tasks.encoder:CLASSIFICATION",
        "embedding": "compressor.tasks.scores:EMBEDDING",
        "token-classification": "compressor.tasks.token_classification:TOKEN_CLASSIFICATION",
        "regression": "compressor.tasks.scores:REGRESSION",
        "reranking": "compressor.tasks.scores:RERANKING",
        "multilabel": "compressor.tasks.encoder:MULTILABEL",
        "question-answering": "compressor.tasks.question_answering:QUESTION_ANSWERING",
        "summarization": "compressor.tasks.encoder_decoder:SUMMARIZATION",
    },
    id="task-unknown",
)


def require_task(checkpoint: Checkpoint) -> Task:
    """The task of a checkpoint.

    Raises:
        UsageError: the task is unknown, or for other models.
        InputError: the model's outputs, or its settings, are not those of the task.
    """
    task = TASKS[checkpoint.task]
    config: Any = checkpoint.model.config
    if task.auto_class != checkpoint.entry.auto_class:
        raise UsageError(
            f"--task {task.name} does not fit {checkpoint.name}, a model for "
            f"{checkpoint.entry.task}; leave it out",
            id="task-of-another-model",
        )
    if not task.fits(config):
        same = [x for x in TASKS.values() if x.auto_class == task.auto_class and x.fits(config)]
        advice = " or ".join(f"--task {other.name}" for other in same)
        raise InputError(
            f"{checkpoint.directory} has {config.num_labels} outputs (problem_type "
            f"{config.problem_type}), which are not those of {task.name}; give another model"
            f"{advice and f', or {advice}'}",
            id="outputs-of-another-task",
        )
    task.require(checkpoint)
    return task
