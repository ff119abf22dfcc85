"""What tasks share whose models name labels of texts, or of their words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from compressor.errors import InputError, did_you_mean
from compressor.tasks.cells import label_cell
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.rows import LabelNames, Rows
from compressor.tasks.tables import Record, quoted, shortened

_CLASS_ID = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


class Labels:
    """The checkpoint's label names, in the order of its class ids.

    Raises:
        InputError: fewer than two labels.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        if len(self.names) < 2:
            raise InputError(
                f"the checkpoint has {len(self.names)} label; a classifier with two or more is "
                "needed",
                id="too-few-labels",
            )
        # With names like "1" to "5" a number is always a name: class id 1 would be "2".
        self.allow_ids = not any(_CLASS_ID.fullmatch(name) for name in self.names)

    def name_of(self, cell: str, where: str) -> str:
        """The label name of a cell with a name or, unless names are numbers, a class id.

        Raises:
            InputError: it is neither; with `where`, `file:line`.
        """
        if cell in self.names:
            return cell
        if self.allow_ids and _CLASS_ID.fullmatch(cell) and int(cell) < len(self.names):
            return self.names[int(cell)]
        raise InputError(
            f"{where}: the label {shortened(cell)!r} is not one of the checkpoint's "
            f"{len(self.names)} ({quoted(self.names, most=5)})"
            + did_you_mean(cell.strip()[:100], self.names),
            id="label-unknown",
        )


class LabelTask(EncoderTask):
    """Labels by the checkpoint's names."""

    def label_names(self, config: Any) -> list[str]:
        return [str(config.id2label[index]) for index in range(config.num_labels)]

    def label_reader(self, labels: LabelNames) -> Callable[[Record, str], str]:
        """Names of labels; cells as they are if no labels are known."""
        if labels is None:
            return label_cell
        known = Labels(labels)
        return lambda record, column: known.name_of(label_cell(record, column), record.where)


def known_labels(rows: Rows, what: str = "labels") -> list[str]:
    """The label names that rows were read with, in the order of their ids.

    Args:
        what: the rows' targets in messages.

    Raises:
        InputError: they were read without.
    """
    if rows.labels is None:
        raise InputError(
            f"the {what} of {', '.join(rows.files)} were read without the checkpoint's label names",
            id="label-names-missing",
        )
    return rows.labels
