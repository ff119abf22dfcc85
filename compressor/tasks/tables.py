"""Strict reading of text files: a row is read as it is written, or is an error with file and line.

Rows are read one at a time, so a file may be larger than memory. Formats, by suffix:

- `.tsv`: a row per line, cells separated by tabs, no quoting (quotation marks are text, as in
  Tatoeba, OPUS and sacreBLEU files); the first line names the columns
- `.csv`: commas and double quotes (RFC 4180), cells may contain line breaks; the first row names
  the columns
- `.jsonl`: a JSON object per line
- plain text, a sentence per line (`read_lines`)

All are UTF-8, with or without a byte order mark, with LF or CRLF line ends, and may be packed
(`.tsv.gz`, `.jsonl.zst`, see `compressor.storage.text_files`). Empty lines at the end of a table
are ignored; anywhere else they are errors.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, BinaryIO

from compressor.errors import CompressWarning, InputError, UsageError, did_you_mean
from compressor.storage.input_files import parse_json, require_regular
from compressor.storage.text_files import PACKED, format_suffix, open_text, raw_lines
from compressor.tasks.rows import RowText, RowTexts

BOM = codecs.BOM_UTF8
JSONL = ".jsonl"
SEPARATORS = {".tsv": "\t", ".csv": ","}
FORMATS = (*SEPARATORS, JSONL)
WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)

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


@dataclass(frozen=True)
class Record:
    """A row: `file:line` of its first line, and its cells by column, in JSON any values."""

    where: str
    cells: dict[str, object]


@dataclass(frozen=True)
class RowTable:
    """A file of rows with named columns (of a JSON file: those of its first object)."""

    path: str
    columns: list[str]
    records: Iterator[Record]
    has_header: bool = True


def read_table(path: str, header: bool = True) -> RowTable:
    """Open a file in one of `FORMATS`; without `header` its columns are `1`, `2`, ….

    Raises:
        UsageError: `header` is False and the format has none.
        InputError: missing, not UTF-8 text, of an unknown format, or malformed; with the line.
            Errors in a row are raised when it is read.
    """
    suffix = format_suffix(path)
    if suffix not in FORMATS:
        known = ", ".join(FORMATS)
        raise InputError(
            f"the format of {path} is not known by its suffix; use one of {known}, which may be "
            f"followed by {' or '.join(PACKED)}",
            id="format-unknown",
        )
    if suffix == JSONL:
        return _json_table(path, header)
    tab_rows = (line.split("\t") for line in _table_lines(path))
    rows = _csv_rows(path) if suffix == ".csv" else enumerate(tab_rows, 1)
    first_row = next(rows, None)
    if first_row is None:
        raise _empty(path)
    _, first = first_row
    if header:
        _require_separated(path, first)
    columns = first if header else [str(number) for number in range(1, len(first) + 1)]
    repeated = [name for name in columns if columns.count(name) > 1]
    if repeated:
        raise InputError(
            f"{path}:1: the column {repeated[0]!r} occurs twice; rename one of them",
            id="column-repeated",
        )
    rest = rows if header else chain([first_row], rows)

    def records() -> Iterator[Record]:
        for line, cells in rest:
            if len(cells) != len(columns):
                what = "the header" if header else "the first row"
                raise InputError(
                    f"{path}:{line}: {_count(len(cells), 'cell')} in a row, but {what} has "
                    f"{_count(len(columns), 'column')} ({quoted(columns)})",
                    id="cell-count-differs",
                )
            yield Record(f"{path}:{line}", dict(zip(columns, cells, strict=True)))

    return RowTable(path, columns, records(), header)


def _json_table(path: str, header: bool) -> RowTable:
    if not header:
        raise UsageError(
            f"{path} is JSONL, which has no header anyway; leave --no-header out",
            id="header-of-json",
        )
    places = ((f"{path}:{number}", line) for number, line in enumerate(_table_lines(path), 1))
    records = (Record(where, parse_object(line, where)) for where, line in places)
    first = next(records, None)
    if first is None:
        raise _empty(path)
    return RowTable(path, list(first.cells), chain([first], records))


def _empty(path: str) -> InputError:
    return InputError(f"{path} is empty; give a file of rows", id="file-empty")


def _table_lines(path: str) -> Iterator[str]:
    """The lines of a table, without empty ones at its end."""
    empty = 0
    for line in read_lines(path):
        if not line:
            empty += 1
            continue
        yield from repeat("", empty)
        empty = 0
        yield line


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Each row with its first line; a quoted cell may continue over several lines."""
    reader = csv.reader((line + "\n" for line in _table_lines(path)), strict=True)
    start = 1
    try:
        for cells in reader:
            yield start, cells or [""]
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{start}: not a CSV row: {error}", id="csv-malformed") from error


def _require_separated(path: str, header: list[str]) -> None:
    """Check that a header of one cell contains no other separator."""
    usual = SEPARATORS[format_suffix(path)]
    for mark in ",;\t|" if len(header) == 1 else "":
        # In a sentence a comma is followed by a space.
        if mark in header[0] and f"{mark} " not in header[0]:
            names = {"\t": "tabs", ",": "commas"}
            advice = f"write the file with {names[usual]}"
            other = next((suffix for suffix, x in SEPARATORS.items() if x == mark), None)
            raise InputError(
                f"{path}:1: the header {shortened(header[0])!r} is one cell, and {mark!r} seems to "
                f"separate its names; {advice}{f', or call it {other}' if other else ''}",
                id="separator-unexpected",
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


def row_texts(
    table: RowTable,
    text: str,
    pair: str | None,
    label: str,
    read_label: Callable[[Record, str], str],
    ranked: bool = False,
) -> RowTexts:
    """The rows of a table: its columns of texts, of second texts if any, and of targets."""

    def row(record: Record) -> RowText:
        source = text_cell(record, text)
        second = None if pair is None else text_cell(record, pair)
        return source, second, read_label(record, label)

    return RowTexts([table.path], map(row, table.records), ranked)


@contextmanager
def reading(path: str | Path, again: bool = False) -> Iterator[BinaryIO]:
    """A file of rows or texts, opened to read its bytes, unpacked.

    One that is read `again` cannot be a pipe. InputError: missing, unreadable, or damaged.
    """
    if Path(path).is_dir():
        raise InputError(f"{path} is a directory; give a file", id="file-is-directory")
    try:
        if again:
            require_regular(Path(path))
        with open_text(Path(path)) as file:
            yield file
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}; check the path", id="file-missing") from error
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; give another file", id="file-unreadable"
        ) from error


def read_lines(path: str) -> Iterator[str]:
    """All lines of a text file, without line ends."""
    with reading(path) as file:
        for number, line in enumerate(raw_lines(file, path), 1):
            yield decoded(line.removeprefix(BOM) if number == 1 else line, f"{path}:{number}")


def decoded(line: bytes, where: str) -> str:
    """The text of a line at `where`, which ends at LF alone: other separators are in sentences."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        is_utf16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        what = "this is UTF-16" if is_utf16 else f"byte 0x{line[error.start]:02x} is not UTF-8"
        raise InputError(f"{where}: {what}; save the file as UTF-8", id="file-not-utf8") from error
    if "\0" in text:
        raise InputError(f"{where}: a NUL character; this is not a text file", id="file-not-text")
    return text.removesuffix("\n").removesuffix("\r")


def parse_object(line: str, where: str) -> dict[str, Any]:
    """The JSON object of a line at `where`."""
    try:
        value = parse_json(line)
    except ValueError as error:
        reason = str(error)
        if isinstance(error, json.JSONDecodeError):  # its text counts lines within the line
            reason = f"{error.msg} at column {error.colno}"
        raise InputError(f"{where}: not valid JSON: {reason}", id="json-malformed") from error
    if not isinstance(value, dict):
        raise InputError(
            f"{where}: not a JSON object; write one object per line", id="json-not-object"
        )
    return value


def shortened(text: str, most: int = 100) -> str:
    """A text for a message, cut if it is long."""
    return text if len(text) <= most else text[:most] + "…"


def quoted(names: Sequence[str], most: int = 10) -> str:
    """Names for a message, `'a', 'b'`, the first few of many."""
    shown = ", ".join(repr(shortened(name)) for name in names[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names)} in all)"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
