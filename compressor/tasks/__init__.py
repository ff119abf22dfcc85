"""The tasks: reading rows, turning them into batches, and the loss of a model on a batch.

- `read_rows`: data files to `Rows`, checked
- `get_task`: the `Task` of a name, with the same attributes and methods for every task

To add a task, write a module with a subclass of `Task` and add a line to `TASKS`. Nothing here
imports torch until tensors are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from compressor.errors import UsageError, did_you_mean
from compressor.tasks.base import Task
from compressor.tasks.batching import Batch, Example, count_truncated
from compressor.tasks.rows import Rows, count_shared, split_rows

__all__ = [
    "TASKS", "Batch", "Example", "Rows", "Task", "count_shared", "count_truncated", "get_task",
    "read_rows", "split_rows",
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


def read_rows(
    task: str,
    spec: str | Path,
    *,
    labels: Sequence[str] | None = None,
    minimum: int = 1,
    limit: int | None = None,
    header: bool = True,
    **columns: str | None,
) -> Rows:
    """Read and check the rows of a calibration or test file.

    Tables (TSV, CSV) have a header row; their first two columns are read unless others are named:
    source and target for translation, text and label for classification (columns called `text` or
    `sentence`, and `label`, are taken first). A header that reads like a sentence is an error, and
    one of unusual names is told, so that a file without a header does not lose its first row.

    Args:
        task: name of a task.
        spec: a .tsv, .csv or .jsonl file; for translation also `SOURCE,TARGET`, two plain text
            files with a sentence per line. A path that exists is one file, commas or not.
        labels: the checkpoint's label names by class id; the labels of the file may be these
            names or class ids. Without it labels are taken as they are.
        minimum: fewer rows are an error.
        limit: use only the first so many rows; all are checked nevertheless.
        header: whether a table has a header row; without one its columns are `1`, `2`, ….
        columns: names of the columns, by option of the task (`source_column`, `label_column`, …).

    Raises:
        UsageError: an unknown task, or options that do not belong together.
        InputError: a missing or malformed file, a missing column, an empty cell, an unknown
            label, too few rows; with file and line.
    """
    return get_task(task).read_rows(
        str(spec), columns, labels=labels, minimum=minimum, limit=limit, header=header
    )
