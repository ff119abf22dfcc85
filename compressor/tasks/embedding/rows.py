"""Rows for embeddings: texts to calibrate on; pairs with a score, or queries, to measure on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compressor.errors import InputError
from compressor.storage.text_files import format_suffix
from compressor.tasks import ranked
from compressor.tasks.cells import cell_text, number_text, require_columns, usual_column
from compressor.tasks.rows import RowText, RowTexts
from compressor.tasks.tables import RowTable, read_lines, read_table

LINES = ".txt"
# Columns with these names are taken where none are named.
USUAL_COLUMNS = {
    "text_column": ("sentence1", "text1", "text", "sentence"),
    "text_pair_column": ("sentence2", "text2"),
    "label_column": ("score", "label", "similarity"),
}


def read(spec: str, columns: Mapping[str, str], header: bool) -> RowTexts:
    """Pairs with scores of a table that has the columns, else the texts of one column, or lines.

    One set of options names the columns of all files, and only test files need pairs: a table
    without the columns of the second text and of the score holds texts. One with the columns query,
    text and label, none of which an option names, holds queries with texts to find.

    Args:
        columns: option -> name of the column, where one was given.

    Raises:
        InputError: a column is missing, a cell is empty, or a score or relevance is no number.
    """
    if format_suffix(spec) == LINES:
        return RowTexts([spec], _lines(spec))
    table = read_table(spec, header)
    if {*ranked.COLUMNS.values()} <= {*table.columns} - {*columns.values()}:
        return _queries(table)
    first, pair, score = (
        columns.get(option) or usual_column(table, names) for option, names in USUAL_COLUMNS.items()
    )
    first = first or table.columns[0]
    if pair is None or score is None or not {pair, score} <= {*table.columns}:
        require_columns(table, [first])
        return RowTexts(
            [spec], ((cell_text(table, record, first), None, "") for record in table.records)
        )
    require_columns(table, [first, pair, score])
    rows = (
        (
            cell_text(table, record, first),
            cell_text(table, record, pair),
            number_text(table, record, score),
        )
        for record in table.records
    )
    return RowTexts([spec], rows, paired=True)


def _queries(table: RowTable) -> RowTexts:
    query, text, label = ranked.COLUMNS.values()
    rows = (
        (
            cell_text(table, record, query),
            cell_text(table, record, text),
            ranked.relevance_text(table, record, label),
        )
        for record in table.records
    )
    return RowTexts([table.path], rows, paired=True, ranked=True)


def _lines(path: str) -> Iterator[RowText]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            raise InputError(f"{path}:{number}: the line is empty; remove it", id="line-empty")
        yield line, None, ""
