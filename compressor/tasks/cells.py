"""Columns and cells of a table, checked: which column is which, and what a cell may contain."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Sequence

from compressor.errors import CompressWarning, InputError, UsageError, did_you_mean
from compressor.storage.text_files import format_suffix
from compressor.tasks.tables import JSONL, Record, RowTable, quoted

# Column names neither end like sentences nor have many words.
_SENTENCE_ENDS = (".", "!", "?", "…")
_MOST_NAME_WORDS = 4
# Names that are not texts, among them codes of languages (en, de_DE, eng_Latn).
_USUAL_NAME = re.compile(
    r"((?i:src|tgt|trg|source|target|texts?|sentence|labels?|class|category|input|output|question|"
    r"answer|premise|hypothesis|original|translation|reference|ref|id|score|article|document|"
    r"dialogue|abstract|summary|highlights)"
    r"|[a-z]{2,3}([_-][A-Za-z]{2,4})?|[A-Z]{2})"
    r"([_-]?(text|sentence|lang|column|\d+)|[_-][a-z]{2})?"
)


def first_two_columns(table: RowTable, options: str) -> tuple[str, str]:
    """Names of the first two columns; InputError if they look like the texts of a row.

    `options` are those that name the columns instead, for the message.
    """
    if len(table.columns) < 2:
        raise InputError(
            f"{table.path}:1: there is only the column {quoted(table.columns)}; two are needed",
            id="too-few-columns",
        )
    first, second = table.columns[:2]
    if not table.has_header:
        return first, second
    for name in (first, second):
        if name.strip().endswith(_SENTENCE_ENDS) or len(name.split()) > _MOST_NAME_WORDS:
            raise InputError(
                f"{table.path}:1: the first line must be a header, and {name[:40]!r} looks like a "
                f"row; put a header above it, or name the columns with {options}",
                id="header-missing",
            )
    is_json = format_suffix(table.path) == JSONL  # every row names its columns
    if not is_json and not all(_USUAL_NAME.fullmatch(name.strip()) for name in (first, second)):
        warnings.warn(
            f"{table.path}: the first line ({quoted([first, second])}) was taken as the names of "
            "the columns; give --no-header if it is a row",
            CompressWarning,
            stacklevel=2,
        )
    return first, second


def usual_column(table: RowTable, names: Sequence[str]) -> str | None:
    """The first of these names that is a column of the table, or None."""
    return next((name for name in names if name in table.columns), None)


def require_columns(table: RowTable, columns: Sequence[str]) -> None:
    """Check that the table has these columns, each for one purpose."""
    if len(set(columns)) != len(columns):
        raise UsageError(
            f"one column is named for two purposes: {quoted(columns)}", id="column-named-twice"
        )
    for name in columns:
        if name not in table.columns:
            raise InputError(
                f"{table.path} has no column {name!r}; its columns are {quoted(table.columns)}"
                f"{did_you_mean(name, table.columns)}",
                id="column-missing",
            )


def text_cell(record: Record, column: str) -> str:
    """The text of a cell, unchanged; InputError if it is missing, empty, or not text."""
    if column not in record.cells:
        raise InputError(f"{record.where}: the object has no {column!r}", id="cell-missing")
    value = record.cells[column]
    if not isinstance(value, str):
        raise InputError(
            f"{record.where}: {column!r} is {json.dumps(value)[:40]}, which is not a string",
            id="cell-not-text",
        )
    if not value.strip():
        raise InputError(f"{record.where}: {column!r} is empty", id="cell-empty")
    return value


def label_cell(record: Record, column: str) -> str:
    """As `text_cell`; an integer of a JSON file is also a label."""
    value = record.cells.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text_cell(record, column)


def number_cell(record: Record, column: str) -> str:
    """The text of a cell that contains a finite number, also one of a JSON file."""
    value = record.cells.get(column)
    cell = repr(value) if isinstance(value, float) else label_cell(record, column)
    try:
        is_finite = math.isfinite(float(cell))
    except ValueError:
        is_finite = False
    if not is_finite:
        raise InputError(
            f"{record.where}: the score {cell[:40]!r} is not a number", id="score-not-number"
        )
    return cell
