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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, BinaryIO

from compressor.errors import InputError, UsageError
from compressor.storage.input_files import parse_json, require_regular
from compressor.storage.text_files import PACKED, format_suffix, open_text, raw_lines

BOM = codecs.BOM_UTF8
JSONL = ".jsonl"
SEPARATORS = {".tsv": "\t", ".csv": ","}
FORMATS = (*SEPARATORS, JSONL)


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
    """Open a file in one of `FORMATS`.

    Args:
        header: whether its first row names the columns; otherwise they are `1`, `2`, ….

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
    rows = _csv_rows(path) if suffix == ".csv" else _tsv_rows(path)
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
    return RowTable(path, columns, _records(path, rest, columns, header), header)


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


def _tsv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(_table_lines(path), 1):
        yield number, line.split("\t")


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


def _records(
    path: str, rows: Iterator[tuple[int, list[str]]], columns: list[str], header: bool
) -> Iterator[Record]:
    for line, cells in rows:
        if len(cells) != len(columns):
            what = "the header" if header else "the first row"
            raise InputError(
                f"{path}:{line}: {_count(len(cells), 'cell')} in a row, but {what} has "
                f"{_count(len(columns), 'column')} ({quoted(columns)})",
                id="cell-count-differs",
            )
        yield Record(f"{path}:{line}", dict(zip(columns, cells, strict=True)))


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
