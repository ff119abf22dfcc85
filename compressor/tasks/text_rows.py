"""Rows of texts, or pairs of texts, with a label each: a class, a number, …"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from compressor.errors import InputError
from compressor.tasks.cells import cell_text, first_two_columns, require_columns, usual_column
from compressor.tasks.reading import RowReader
from compressor.tasks.rows import ColumnNames, LabelNames, RowText, RowTexts
from compressor.tasks.tables import Record, RowTable, quoted, read_table


class TextRows(RowReader):
    """Reads tables with a column of texts, one of labels, and maybe one of second texts."""

    columns: ClassVar[tuple[str, ...]] = ("text_column", "text_pair_column", "label_column")
    inputs = ("text_column", "text_pair_column")
    usual_columns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "text_column": ("text", "sentence"),
        "label_column": ("label",),
    }
    options: ClassVar[tuple[str, ...]] = ("--source-text",)

    def label_cell(self, table: RowTable, record: Record, column: str) -> str:
        """The text of a cell of the label column.

        Raises:
            InputError: it holds something else; with file and line.
        """
        return cell_text(table, record, column, integers=True)

    def label_reader(self, labels: LabelNames) -> Callable[[str, str], str]:
        """A function of a cell of the label column and its place that gives the target it means.

        Cells are targets as they stand, unless a task says otherwise.

        Raises:
            InputError: the labels cannot be used; from the function, the cell means none.
        """
        return lambda cell, _: cell

    def read_texts(
        self, spec: str, columns: ColumnNames, labels: LabelNames, header: bool
    ) -> RowTexts:
        table = read_table(spec, header)
        read_label = self.label_reader(labels)

        def named(option: str) -> str | None:
            usual = usual_column(table, self.usual_columns.get(option, ()))
            return columns.get(option, usual)

        text, pair, label = map(named, ("text_column", "text_pair_column", "label_column"))
        if text is None or label is None:
            what, option = ("labels", "label") if label is None else ("texts", "text")
            first, second = first_two_columns(table, "--text-column and --label-column")
            text, label = text or first, label or second
            if text == label:
                raise InputError(
                    f"{table.path}: nothing says which column holds the {what}; name it with "
                    f"--{option}-column, its columns are {quoted(table.columns)}",
                    id="column-not-named",
                )
        require_columns(table, [text, label] if pair is None else [text, label, pair])

        def row(record: Record) -> RowText:
            source = cell_text(table, record, text)
            second = None if pair is None else cell_text(table, record, pair)
            value = self.label_cell(table, record, label)
            return source, second, read_label(value, f"{table.path}:{record.line}")

        return RowTexts([spec], map(row, table.records), paired=pair is not None)
