"""Rows for embeddings: texts to calibrate on, and pairs of texts with a score to measure on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from compressor.errors import InputError
from compressor.tasks.cells import cell_text, require_columns
from compressor.tasks.rows import RowTexts
from compressor.tasks.tables import Record, Table, read_lines, read_table

LINES = ".txt"
# Columns with these names are taken where none are named.
_TEXT = ("sentence1", "text1", "text", "sentence")
_PAIR = ("sentence2", "text2")
_SCORE = ("score", "label", "similarity")


def read(spec: str, columns: Mapping[str, str], header: bool) -> RowTexts:
    """Pairs with scores of a table that has the columns, else the texts of one column, or lines.

    One set of options names the columns of all files, and only test files need pairs: a table
    without the columns of the second text and of the score holds texts.

    Args:
        columns: option -> name of the column, where one was given.

    Raises:
        InputError: a column is missing, a cell is empty, or a score is no number.
    """
    if Path(spec).suffix.lower() == LINES:
        return _lines(spec)
    table = read_table(spec, header)
    first = columns.get("text_column") or _usual(table, _TEXT) or table.columns[0]
    pair = columns.get("text_pair_column") or _usual(table, _PAIR)
    score = columns.get("label_column") or _usual(table, _SCORE)
    if pair is None or score is None or not {pair, score} <= {*table.columns}:
        require_columns(table, [first])
        texts = [cell_text(table, record, first) for record in table.records]
        return RowTexts([spec], texts, None, [""] * len(texts))
    require_columns(table, [first, pair, score])
    return RowTexts(
        [spec],
        [cell_text(table, record, first) for record in table.records],
        [cell_text(table, record, pair) for record in table.records],
        [_score(table, record, score) for record in table.records],
    )


def _usual(table: Table, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in table.columns), None)


def _lines(path: str) -> RowTexts:
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise InputError(f"{path}:{number}: the line is empty; remove it", id="line-empty")
    return RowTexts([path], lines, None, [""] * len(lines))


def _score(table: Table, record: Record, column: str) -> str:
    value = record.cells.get(column)
    cell = (
        repr(value) if isinstance(value, float) else cell_text(table, record, column, integers=True)
    )
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            f"{table.path}:{record.line}: the score {cell[:40]!r} is not a number",
            id="score-not-number",
        )
    return cell
