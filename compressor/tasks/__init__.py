"""The tasks: reading rows, turning them into batches, and the loss of a model on a batch.

- `read_rows`: data files to `Rows`, checked
- `get_task`: the `Task` of a name, with the same attributes and methods for every task

To add a task, write a module with a subclass of `Task` and add a line to `TASKS`. Nothing here
imports torch until tensors are made.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from compressor.errors import UsageError, did_you_mean
from compressor.tasks.base import Task
from compressor.tasks.batching import Batch, Example, count_truncated
from compressor.tasks.rows import Rows, count_shared, read_rows

__all__ = [
    "TASKS", "Batch", "Example", "Rows", "Task", "count_shared", "count_truncated", "get_task",
    "read_rows",
]  # fmt: skip

TASKS: dict[str, str] = {
    "translation": "compressor.tasks.translation:Translation",
    "classification": "compressor.tasks.classification:Classification",
}


@cache
def get_task(name: str) -> Task:
    """The task of this name, imported on first use.

    Raises:
        UsageError: an unknown name; the message lists the known ones.
    """
    if name not in TASKS:
        raise UsageError(
            f"there is no task {name!r}; there are {', '.join(TASKS)}{did_you_mean(name, TASKS)}",
            id="task-unknown",
        )
    module, _, class_name = TASKS[name].partition(":")
    task: Task = getattr(import_module(module), class_name)()
    return task
