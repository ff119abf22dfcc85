"""The interface of tasks: no other code depends on which task it is.

It does so in four parts, each of which can be read alone: `reading` (data files and rows),
`learning` (batches, loss, what a dense model teaches), `answering` (answers and metrics) and
`deployment` (graphs and runtime).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from compressor.tasks.answering import Answerer
from compressor.tasks.deployment import Deployment
from compressor.tasks.learning import Objective
from compressor.tasks.reading import RowReader


class Task(RowReader, Objective, Answerer, Deployment):
    """One task, for example translation; `compressor.tasks.TASKS` has it by name.

    Args:
        name: in reports, in artifacts and on the command line.
        auto_class: the class of transformers that loads its checkpoints.
    """

    name: ClassVar[str]
    auto_class: ClassVar[str]

    def require(self, config: Any, where: Path) -> None:  # most need nothing
        """Check that the task can be done with a checkpoint of `auto_class`.

        Args:
            config: the model's configuration, from the directory `where`.

        Raises:
            InputError: it cannot.
        """

    def require_tokenizer(self, tokenizer: Any, where: Path) -> None:  # most need nothing
        """Check that the task can be done with a checkpoint's tokenizer.

        Args:
            tokenizer: from the directory `where`.

        Raises:
            InputError: it cannot.
        """

    def label_names(self, config: Any) -> list[str] | None:
        """Names of the classes in the order of the logits; None where there are no classes."""
        return None
