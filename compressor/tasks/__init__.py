"""The tasks: reading rows, turning them into batches, and the loss of a model on a batch.

- `read_rows`: data files to `Rows`, checked; needs no torch
- `task_module`: the module of a task, with the same functions for every task:
  `encode(rows, tokenizer, max_source_tokens)`, `batches(examples, model)`,
  `logits(model, batch)`, `loss(model, batch)`, `loss_terms(batch)`, `term_mask(batch)`,
  `token_mask(batch, kind)`,
  `predict(model, batch, tokenizer)`

To add a task, write such a module, add a line to `TASKS` and say in `rows.py` how its rows read.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from compressor.errors import UsageError
from compressor.tasks.batching import Batch, Example, count_truncated
from compressor.tasks.rows import Rows, count_shared, read_rows

__all__ = [
    "TASKS", "Batch", "Example", "Rows", "count_shared", "count_truncated", "read_rows",
    "task_module",
]  # fmt: skip

TASKS: dict[str, str] = {
    "translation": "compressor.tasks.translation",
    "classification": "compressor.tasks.classification",
}


def task_module(task: str) -> ModuleType:
    """The module of a task, imported on first use.

    Raises:
        UsageError: there is no such task; the message lists those there are.
    """
    if task not in TASKS:
        raise UsageError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
    return import_module(TASKS[task])
