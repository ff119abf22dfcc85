"""Labels of rows: names or class ids of a checkpoint, alone or several for a text."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

from typing_extensions import override

from compressor.errors import InputError, did_you_mean
from compressor.storage.input_files import shown
from compressor.tasks import tables
from compressor.tasks.rows import LabelNames
from compressor.tasks.tables import Record, RowTable

IN_CELLS, BETWEEN = "|", "\t"  # what separates several labels


class Labels:
    """The checkpoint's label names, in the order of its class ids; any if none are known."""

    def __init__(self, names: LabelNames) -> None:
        self.names = list(names or ())
        # With names like "1" to "5" a number is always a name: class id 1 would be "2".
        self.allow_ids = not any(tables.whole_number(name) is not None for name in self.names)
        self._kinds: set[str] = set()  # of labels that were read

    def name_of(self, cell: str, where: str) -> str:
        """The label name of a cell with a name or, unless names are numbers, a class id."""
        if not self.names:
            return cell
        if cell in self.names:
            self._kinds.add("names")
            return cell
        number = tables.whole_number(cell) if self.allow_ids else None
        if number is not None and number < len(self.names):
            self._kinds.add("ids")
            return self.names[number]
        raise InputError(
            f"{where}: the label {shown(cell, 100)} is not one of the checkpoint's "
            f"{len(self.names)} ({tables.quoted(self.names, most=5)})"
            + did_you_mean(cell.strip()[:100], self.names),
            id="label-unknown",
        )

    def read(self, record: Record, column: str) -> str:
        """The name of a record's label; InputError for one that the checkpoint lacks."""
        return self.name_of(record.label(column), record.where)

    def said(self) -> str:
        """How labels were read; empty if the checkpoint's are not known."""
        if not self._kinds:
            return ""
        some = [f"{number} is {shown(name)}" for number, name in enumerate(self.names[:3])]
        ids = f" ({', '.join(some)}{', …' if self.names[3:] else ''})"
        kinds = " and ".join(sorted(self._kinds, reverse=True))
        return f"labels are {kinds} of the checkpoint{ids if 'ids' in self._kinds else ''}"


class SeveralLabels(Labels):
    """Several labels of a text: names or ids, or a 0 or 1 for each label in the order of ids."""

    def __init__(self, names: LabelNames, each: bool = False) -> None:
        super().__init__(names)
        self.each = each  # whether a list has a 0 or 1 for each label

    def read(self, record: Record, column: str) -> str:
        """The names, in the order of ids."""
        value = record.cells.get(column)
        if self.each:
            return BETWEEN.join(self._of_each(value, record.where, column))
        if isinstance(value, list):
            parts = [Record(record.where, {column: part}) for part in value]
            cells = [part.label(column) for part in parts]
        else:
            cell = "" if value == "" else record.label(column)
            cells = [name.strip() for name in cell.split(IN_CELLS)] if cell else []
        named = [self.name_of(name, record.where) for name in cells]
        if self.names and named != cells and len({*named}) < len(named):
            raise InputError(
                f"{record.where}: {column!r} has the id of a label twice; give each label once, or "
                f"a 0 or 1 for each of the {len(self.names)} in every row",
                id="label-repeated",
            )
        return BETWEEN.join(name for name in self.names or named if name in named)

    def _of_each(self, value: Any, where: str, column: str) -> list[str]:
        if not (isinstance(value, list) and len(value) == len(self.names) and _is_binary(value)):
            raise InputError(
                f"{where}: {column!r} is {shown(value)}, and other rows have a list with a 0 or 1 "
                f"for each of the {len(self.names)} labels; give all rows the same",
                id="labels-mixed",
            )
        return [name for name, given in zip(self.names, value, strict=True) if int(given)]

    @override
    def said(self) -> str:
        return "labels are a 0 or 1 for each of the checkpoint's" if self.each else super().said()


def several_labels(
    table: RowTable, column: str, names: LabelNames
) -> tuple[RowTable, SeveralLabels]:
    """The labels of a table's rows, and the table with all its rows.

    A list of 0 and 1 of the length of the labels, as models for several labels are trained on, can
    only be ids if there are two labels: there the first row that is one of both alone decides.
    Raises InputError where none does.
    """
    waiting: list[Record] = []
    for record in table.records:
        waiting.append(record)
        each = _has_each(record.cells.get(column), len(names or ()))
        if each is not None:
            return replace(table, records=chain(waiting, table.records)), SeveralLabels(names, each)
    raise InputError(
        f"{table.path}: {column!r} can be ids of labels in every row, or a 0 or 1 for each of the "
        "two labels; give the labels by name",
        id="labels-ambiguous",
    )


def _has_each(value: object, count: int) -> bool | None:
    """Whether a cell has a 0 or 1 for each label, and no ids; None if it can be both."""
    if not isinstance(value, list) or not value:
        return False
    if all(isinstance(part, bool | float) for part in value):
        return True
    if len(value) != count or not _is_binary(value):
        return False
    return True if len(set(map(int, value))) < count else None


def _is_binary(value: list[Any]) -> bool:
    parts = [int(part) if part in ("0", "1") else part for part in value]
    return all(isinstance(part, int | float) and part in (0, 1) for part in parts)
