"""Reading text files strictly: a row is read as it stands, or is an error with file and line.

Formats, by suffix:

- `.tsv`: one row per line, cells separated by tabs, no quoting (quotation marks are text, as in
  Tatoeba, OPUS and sacreBLEU files); the first line names the columns
- `.csv`: commas and double quotes (RFC 4180), cells may hold line breaks; the first row names the
  columns
- `.jsonl`: one JSON object per line
- plain text, one sentence per line (`read_lines`)

All are UTF-8, with or without a byte order mark, with LF or CRLF line ends. Empty lines at the
end of a table are ignored; anywhere else they are errors.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from compressor.errors import InputError, UsageError
from compressor.storage.input_files import parse_json, read_bytes


@dataclass(frozen=True)
class Record:
    """One row: the line it starts on (from 1), and its cells by column name.

    Cells are strings; of a JSON file they are whatever JSON value stood there.
    """

    line: int
    cells: dict[str, object]


@dataclass(frozen=True)
class Table:
    """A file of rows with named columns (of a JSON file: those of its first object)."""

    path: str
    columns: list[str]
    records: list[Record]
    has_header: bool = True


def read_table(path: str, header: bool = True) -> Table:
    """Read a file whose suffix is one of `FORMATS`.

    Args:
        header: whether its first row names the columns; without, they are `1`, `2`, ….

    Raises:
        UsageError: `header` is False and the format has none.
        InputError: missing, not UTF-8 text, of an unknown format, or malformed; with the line.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        known = ", ".join(FORMATS)
        raise InputError(
            f"the format of {path} is not known by its suffix; use one of {known}",
            id="format-unknown",
        )
    return FORMATS[suffix](path, read_text(path), header)


def read_lines(path: str) -> list[str]:
    """The lines of a plain text file, without line ends; every line counts, empty ones too.

    Raises:
        InputError: missing or not UTF-8 text.
    """
    return _split(read_text(path))


def read_text(path: str) -> str:
    """The contents of a UTF-8 file, without its byte order mark, line ends untouched.

    Raises:
        InputError: missing, not a file, unreadable, not UTF-8, or binary; with the line.
    """
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{path} is a directory; give a file of rows", id="file-is-directory")
    try:
        data = read_bytes(file, most=None)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}; check the path", id="file-missing") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", id="file-unreadable") from error
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{path} is UTF-16 text; save it as UTF-8", id="file-not-utf8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # utf-8-sig counts from behind a byte order mark; the lines are the same.
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise InputError(
            f"{path}:{line}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8",
            id="file-not-utf8",
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(
            f"{path}:{line}: a NUL character; this is not a text file", id="file-not-text"
        )
    return text


def _split(text: str) -> list[str]:
    # Not str.splitlines: it also breaks at characters such as U+2028 that occur inside sentences.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _table_lines(path: str, text: str) -> list[str]:
    lines = _split(text)
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise InputError(f"{path} is empty; give a file of rows", id="file-empty")
    return lines


def _read_tsv(path: str, text: str, header: bool) -> Table:
    lines = _table_lines(path, text)
    return _of_rows(path, ((n, line.split("\t")) for n, line in enumerate(lines, 1)), header)


def _read_csv(path: str, text: str, header: bool) -> Table:
    return _of_rows(path, _csv_rows(path, _table_lines(path, text)), header)


def _csv_rows(path: str, lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Each row with the line it starts on; a quoted cell may go on over several lines."""
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    start = 1
    try:
        for cells in reader:
            yield start, cells or [""]
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{start}: not a CSV row: {error}", id="csv-malformed") from error


def _of_rows(path: str, rows: Iterator[tuple[int, list[str]]], header: bool) -> Table:
    first_line, first = next(rows)
    columns = first if header else [str(number) for number in range(1, len(first) + 1)]
    records = []
    for line, cells in rows if header else chain([(first_line, first)], rows):
        if len(cells) != len(columns):
            what = "the header" if header else "the first row"
            raise InputError(
                f"{path}:{line}: {_count(len(cells), 'cell')} in a row, but {what} has "
                f"{_count(len(columns), 'column')} ({quoted(columns)})",
                id="cell-count-differs",
            )
        records.append(Record(line, dict(zip(columns, cells, strict=True))))
    repeated = [name for name in columns if columns.count(name) > 1]
    if repeated:
        raise InputError(
            f"{path}:1: the column {repeated[0]!r} occurs twice; rename one of them",
            id="column-repeated",
        )
    return Table(path, columns, records, header)


def _read_jsonl(path: str, text: str, header: bool) -> Table:
    if not header:
        raise UsageError(
            f"{path} is JSONL, which has no header anyway; leave --no-header out",
            id="header-of-json",
        )
    records: list[Record] = []
    for number, line in enumerate(_table_lines(path, text), 1):
        try:
            value = parse_json(line)
        except ValueError as error:
            reason = str(error)
            if isinstance(error, json.JSONDecodeError):  # its text counts lines within the line
                reason = f"{error.msg} at column {error.colno}"
            raise InputError(
                f"{path}:{number}: not valid JSON: {reason}", id="json-malformed"
            ) from error
        if not isinstance(value, dict):
            raise InputError(
                f"{path}:{number}: not a JSON object; write one object per line",
                id="json-not-object",
            )
        records.append(Record(number, value))
    return Table(path, list(records[0].cells), records)


FORMATS: dict[str, Callable[[str, str, bool], Table]] = {
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
}


def shortened(text: str, most: int = 100) -> str:
    """A text for a message, cut where it is long."""
    return text if len(text) <= most else text[:most] + "…"


def quoted(names: Sequence[str], most: int = 10) -> str:
    """Names for a message, `'a', 'b'`, the first few of many."""
    shown = ", ".join(repr(shortened(name)) for name in names[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names)} in all)"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
