"""Strict reading of files of rows, one row at a time: every error has the file and the line.

`.tsv` has no quoting: quotation marks are text, as in Tatoeba, OPUS and sacreBLEU files. `.csv` is
that of RFC 4180. Empty lines at the end of a table are ignored, others are errors.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, BinaryIO

from compressor.errors import CompressWarning, InputError, did_you_mean
from compressor.storage.input_files import parse_json, require_regular, shown
from compressor.storage.text_files import PACKED, format_suffix, open_text, raw_lines
from compressor.tasks.rows import ColumnNames, RowText, RowTexts

BOM = codecs.BOM_UTF8
JSONL = ".jsonl"
FORMATS = (".tsv", ".csv", JSONL)
WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)

UsualColumns = Mapping[str, Sequence[str]]  # option -> default columns

# Names of columns that are not texts, among them codes of languages (en, de_DE, eng_Latn).
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
    cells: Mapping[str, object]

    def text(self, column: str, blank: bool = False) -> str:
        """The text of a cell, unchanged; InputError if it is missing, not text, or empty."""
        if column not in self.cells:
            raise InputError(
                f"{self.where}: the row has no {column!r}; give every row the columns of the first",
                id="cell-missing",
            )
        value = self.cells[column]
        if not isinstance(value, str):
            raise InputError(
                f"{self.where}: {column!r} is {json.dumps(value)[:40]}, which is not a text; write "
                "it in quotation marks",
                id="cell-not-text",
            )
        if not (blank or value.strip()):
            raise InputError(
                f"{self.where}: {column!r} is empty; fill it, or remove the row", id="cell-empty"
            )
        return value

    def label(self, column: str) -> str:
        """The text of a cell; an integer of a JSON file is also a label.

        Raises:
            InputError: it is missing, not text, or empty.
        """
        value = self.cells.get(column)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.text(column)

    def number(self, column: str, whole: bool = False) -> str:
        """The text of a cell that contains a finite number, also one of a JSON file."""
        value = self.cells.get(column)
        cell = repr(value) if isinstance(value, float) else self.label(column)
        try:
            is_one = bool(WHOLE_NUMBER.fullmatch(cell) if whole else math.isfinite(float(cell)))
        except ValueError:
            is_one = False
        if not is_one:
            raise InputError(
                f"{self.where}: {column!r} is {shown(cell)}, and must be "
                f"{'a whole number, 0 or more' if whole else 'a number'}",
                id="score-not-number",
            )
        return cell

    def relevance(self, column: str) -> str:
        """A cell with the relevance of a text: a whole number, 0 for not at all."""
        return self.number(column, whole=True)


@dataclass(frozen=True)
class RowTable:
    """A file of rows with named columns (of a JSON file: those of its first object)."""

    path: str
    columns: list[str]
    records: Iterator[Record]
    has_header: bool  # whether its first line has the names, and may be a row by mistake

    def column(self, option: str, named: ColumnNames, usual: UsualColumns) -> str | None:
        """The column of an option: as named, else the first one with a usual name, else None.

        Raises InputError if there is no column of the name.
        """
        name = named.get(option)
        if name is not None and name not in self.columns:
            raise column_missing(self.path, name, self.columns)
        return name or next((name for name in usual.get(option, ()) if name in self.columns), None)

    def first_columns(self, count: int) -> list[str]:
        """The names of so many first columns; warns of a first line like a row."""
        names = self.columns[:count]
        if len(names) < count:
            raise InputError(
                f"{self.path}:1: of columns there are {len(names)} ({quoted(names)}), and {count} "
                "are needed; separate cells as the file's suffix says",
                id="too-few-columns",
            )
        if self.has_header and not all(_USUAL_NAME.fullmatch(name.strip()) for name in names):
            warnings.warn(
                f"{self.path}: the first line ({quoted(names)}) was taken as the names of the "
                "columns; give --no-header if it is a row",
                CompressWarning,
                stacklevel=2,
            )
        return names

    def two_columns(
        self, options: Sequence[str], named: ColumnNames, usual: UsualColumns
    ) -> tuple[str, str]:
        """The columns of two options, by default the first and the second one."""
        first, second = (self.column(option, named, usual) for option in options)
        if first is None or second is None:
            names = self.first_columns(2)
            first, second = first or names[0], second or names[1]
        return first, second

    def texts(
        self,
        text: str,
        pair: str | None,
        label: str,
        read_label: Callable[[Record, str], str],
        ranked: bool = False,
    ) -> RowTexts:
        """The rows: columns of texts, of second texts if any, and of targets; all different."""
        names = [name for name in (text, pair, label) if name is not None]
        if len({*names}) < len(names):
            raise InputError(
                f"{self.path}: one column would be read for two purposes ({quoted(names)}); name "
                f"each of {quoted(self.columns)} for one, with the options for columns in --help",
                id="column-named-twice",
            )

        def row(record: Record) -> RowText:
            second = None if pair is None else record.text(pair)
            return record.text(text), second, read_label(record, label)

        return RowTexts([self.path], map(row, self.records), ranked)


def read_table(path: str, header: bool = True) -> RowTable:
    """Open a file in one of `FORMATS`; a table without `header` has the columns `1`, `2`, ….

    Raises InputError, with the line, for a file or a first row that cannot be read; errors in other
    rows are raised when these are read.
    """
    suffix = require_format(path, FORMATS)
    records = _table_rows(path, suffix, header)
    if suffix == JSONL:
        lines = ((f"{path}:{number}", x) for number, x in enumerate(_table_lines(path), 1))
        records = (Record(where, parse_json_of(line, where)) for where, line in lines)
    first = next(records, None)
    if first is None:
        raise InputError(f"{path} has no rows; give a file of rows", id="too-few-rows")
    return RowTable(path, list(first.cells), chain([first], records), header and suffix != JSONL)


def _table_rows(path: str, suffix: str, header: bool) -> Iterator[Record]:
    lines = _table_lines(path)
    tab_rows = (line.split("\t") for line in lines)
    rows = _csv_rows(lines, path) if suffix == ".csv" else enumerate(tab_rows, 1)
    columns: list[str] = []
    for number, cells in rows:
        where = f"{path}:{number}"
        if not columns:
            columns = cells if header else [str(n) for n in range(1, len(cells) + 1)]
            if len({*columns}) < len(columns):
                raise InputError(
                    f"{where}: two columns have the same name ({quoted(columns)}); rename one",
                    id="column-repeated",
                )
            if header:
                continue
        if len(cells) != len(columns):
            raise InputError(
                f"{where}: the number of cells is {len(cells)}, and that of columns "
                f"{len(columns)} ({quoted(columns)}); give every row all of them",
                id="cell-count-differs",
            )
        yield Record(where, dict(zip(columns, cells, strict=True)))


def require_format(path: str, formats: Sequence[str]) -> str:
    """The suffix of a file, without packing; InputError if it is not one of `formats`."""
    suffix = format_suffix(path)
    if suffix not in formats:
        raise InputError(
            f"the format of {path} is not known by its suffix; use {' or '.join(formats)}, packed "
            f"or not ({' or '.join(PACKED)} behind it)",
            id="format-unknown",
        )
    return suffix


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


def _csv_rows(lines: Iterator[str], path: str) -> Iterator[tuple[int, list[str]]]:
    """Each row with its first line; a quoted cell may continue over several lines."""
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    start = 1
    try:
        for cells in reader:
            yield start, cells or [""]
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}:{start}: not a CSV row ({error}); put cells with commas, quotation marks or "
            "line breaks in quotation marks",
            id="csv-malformed",
        ) from error


def column_missing(where: str, name: str, columns: Sequence[str]) -> InputError:
    """The error of a table without a column."""
    return InputError(
        f"{where} has no column {name!r}; its columns are {quoted(columns)}"
        f"{did_you_mean(name, columns)}",
        id="column-missing",
    )


@contextmanager
def reading(path: str | Path, again: bool = False) -> Iterator[BinaryIO]:
    """A file of rows or texts, opened to read its bytes, unpacked.

    One that is read `again` cannot be a pipe. InputError: missing, unreadable, or damaged.
    """
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


def filled_lines(path: str) -> Iterator[str]:
    """The lines of `read_lines`; InputError for one without text."""
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            raise InputError(
                f"{path}:{number}: the line is empty; remove it, of two parallel files from both",
                id="line-empty",
            )
        yield line


def decoded(line: bytes, where: str) -> str:
    """The text of a line at `where`, which ends at LF alone: other separators are in sentences."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: byte 0x{line[error.start]:02x} is not UTF-8; save the file as UTF-8",
            id="file-not-utf8",
        ) from error
    if "\0" in text:
        raise InputError(f"{where}: a NUL character; give a text file in UTF-8", id="file-not-text")
    return text.removesuffix("\n").removesuffix("\r")


def parse_json_of(text: str, where: str, kinds: tuple[type, ...] = (dict,)) -> Any:
    """The JSON object of a line, or a value of another of these kinds, at `where`."""
    try:
        value = parse_json(text)
        if not isinstance(value, kinds):
            raise ValueError("it is not an object")
    except ValueError as error:
        # Of a line, the number within it would be taken for its own.
        reason = str(error).replace("line 1 column", "column")
        raise InputError(
            f"{where}: not valid JSON: {reason}; write an object a line in {JSONL}",
            id="json-malformed",
        ) from error
    return value


def quoted(names: Sequence[str], most: int = 10) -> str:
    """Names for a message, `'a', 'b'`, the first few of many."""
    some = ", ".join(shown(name, 100) for name in names[:most])
    return some if len(names) <= most else f"{some}, … ({len(names)} in all)"
