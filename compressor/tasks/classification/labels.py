"""Which of a checkpoint's labels a cell of a data file means."""

from __future__ import annotations

import re
from collections.abc import Sequence

from compressor.errors import InputError, did_you_mean
from compressor.tasks.tables import quoted, shortened

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
        """The label name of a cell that holds a name or, unless names are numbers, a class id.

        Args:
            where: file and line, for the message.

        Raises:
            InputError: it is neither.
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
