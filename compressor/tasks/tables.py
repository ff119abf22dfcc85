"""Strict reading of files of rows, one row at a time: every error has the file and the line.

`.csv` is that of RFC 4180, and `.tsv` is read as `tab_cells` says. Empty lines at the end of a
table are ignored, others are errors.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from compressor.errors import InputError, did_you_mean
from compressor.storage.input_files import parse_json, require_regular, shown
from compressor.storage.text_files import PACKED, format_suffix, open_text, raw_lines
from compressor.tasks.rows import RowText, RowTexts
from compressor.tasks.tab_cells import TabRows, without_end

BOM = codecs.BOM_UTF8
JSONL = ".jsonl"
FORMATS = (".tsv", ".csv", JSONL)
_SAMPLE = 8  # records
_WHOLE_NUMBER = re.compile(r"(0|[1-9][0-9]{0,8})(\.0+)?", re.ASCII)


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
        if isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0:
            return str(value)
        return self.text(column)

    def number(self, column: str, whole: bool = False) -> str:
        """The text of a cell that contains a finite number, also one of a JSON file."""
        value = self.cells.get(column)
        cell = repr(value) if isinstance(value, float) else self.label(column)
        try:
            # Python takes 1_0 for 10.
            number = None if "_" in cell or not math.isfinite(float(cell)) else cell
        except ValueError:
            number = None
        if whole:
            found = whole_number(cell)
            number = None if found is None else str(found)
        if number is None:
            raise InputError(
                f"{self.where}: {column!r} is {shown(cell)}, and must be "
                f"{'a whole number, 0 or more' if whole else 'a number'}",
                id="score-not-number",
            )
        return number

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
    marks: Callable[[], str] = str  # how quotation marks were read, once all rows are
    sample: Sequence[Record] = ()  # the first of the records

    def texts(
        self,
        columns: Mapping[str, str | None],
        read_label: Callable[[Record, str], str],
        labels: Callable[[], str] = str,
        ranked: bool = False,
    ) -> RowTexts:
        """The rows.

        Args:
            columns: those of texts, of second texts or None, and of targets, by what they are
                called in messages; all different.
            read_label: the target in a record's column.
            ranked: whether rows are texts for queries.
            labels: how targets were read, once all rows are.
        """
        text, pair, label = columns.values()
        names = [name for name in (text, pair, label) if name is not None]
        if len({*names}) < len(names):
            raise InputError(
                f"{self.path}: one column would be read for two purposes ({quoted(names)}); name "
                f"each of {quoted(self.columns)} for one, with the options for columns in --help",
                id="column-named-twice",
            )
        assert text is not None  # as it is of columns that are chosen
        assert label is not None

        def row(record: Record) -> RowText:
            second = None if pair is None else record.text(pair)
            return record.text(text), second, read_label(record, label)

        read = partial(self.read, columns, labels)
        return RowTexts([self.path], map(row, self.records), ranked, read)

    def read(self, columns: Mapping[str, str | None], labels: Callable[[], str] = str) -> str:
        """What was read, for a message: columns, quotation marks, labels."""
        named = {what: name for what, name in columns.items() if name is not None}
        rest = [name for name in self.columns if name not in named.values()]
        parts = [
            ", ".join(f"{what} {shown(name, 100)}" for what, name in named.items()),
            f"not read: {quoted(rest)}" if rest else "",
            self.marks(),
            labels(),
        ]
        return "; ".join(filter(None, parts))


def names_alone(where: str, names: Sequence[str]) -> RowTable:
    """The columns of a JSON object at `where`, without rows."""
    return RowTable(where, list(names), iter(()), has_header=False)


def read_table(path: str, header: bool = True, quotes: bool | None = None) -> RowTable:
    """Open a file in one of `FORMATS`; a table without `header` has the columns `1`, `2`, ….

    Raises InputError, with the line, for a file or a first row that cannot be read; errors in other
    rows are raised when these are read.

    Args:
        path: the file, packed or not.
        header: whether a table's first line names its columns.
        quotes: whether quotation marks quote the cells of a `.tsv` file; None: as it shows itself.
    """
    suffix, lines = require_format(path, FORMATS), _table_lines(path)
    records: Iterator[Record]
    marks: Callable[[], str] = str
    if suffix == JSONL:
        places = ((f"{path}:{number}", line) for number, line in enumerate(lines, 1))
        records = (Record(where, parse_json_of(line, where)) for where, line in places)
    elif suffix == ".csv":
        records = _records(_csv_rows(lines, path), path, header)
    else:
        rows = TabRows(lines, path, quotes, header)
        records, marks = _records(rows, path, header), rows.said
    sample = list(islice(records, _SAMPLE))
    if not sample:
        raise InputError(f"{path} has no rows; give a file of rows", id="too-few-rows")
    columns, has_header = list(sample[0].cells), header and suffix != JSONL
    return RowTable(path, columns, chain(sample, records), has_header, marks, sample)


def unfolded(table: RowTable, column: str) -> RowTable:
    """With what is in the object of a column, `{"translation": {"en": …, "de": …}}`, as columns.

    Where the first row has no object there, as it was.
    """
    first = table.sample[0]
    if not isinstance(first.cells.get(column), dict):
        return table

    def row(record: Record) -> Record:
        inner = record.cells.get(column)
        if not isinstance(inner, dict):
            raise InputError(
                f"{record.where}: {column!r} is {shown(inner)}, and an object in the first row; "
                "give all rows the same columns",
                id="cell-not-text",
            )
        others = {name: value for name, value in record.cells.items() if name != column}
        return Record(record.where, {**others, **inner})

    return replace(table, columns=list(row(first).cells), records=map(row, table.records))


def _records(rows: Iterable[tuple[int, list[str]]], path: str, header: bool) -> Iterator[Record]:
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
    """The lines of a table with their ends, without empty ones at its end."""
    empty: list[str] = []
    for line in read_lines(path, ends=True):
        if not without_end(line):
            empty.append(line)
            continue
        yield from empty
        empty.clear()
        yield line


def _csv_rows(lines: Iterator[str], path: str) -> Iterator[tuple[int, list[str]]]:
    """Each row with its first line; a quoted cell may continue over several lines."""
    reader = csv.reader(lines, strict=True)
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


def read_lines(path: str, ends: bool = False) -> Iterator[str]:
    """All lines of a text file, with their `ends` or without."""
    with reading(path) as file:
        for number, line in enumerate(raw_lines(file, path), 1):
            text = decoded(line.removeprefix(BOM) if number == 1 else line, f"{path}:{number}")
            yield text if ends else without_end(text)


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
    """The text of a line at `where`, with its end, LF alone: other separators are in sentences."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: byte 0x{line[error.start]:02x} is not UTF-8; save the file as UTF-8",
            id="file-not-utf8",
        ) from error
    if "\0" in text:
        raise InputError(f"{where}: a NUL character; give a text file in UTF-8", id="file-not-text")
    return text


def parse_json_of(text: str, where: str, kinds: tuple[type, ...] = (dict,)) -> Any:
    """The JSON object of a line, or a value of another of these kinds, at `where`."""
    try:
        value = parse_json(text, _unique_names)
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


def whole_number(cell: str) -> int | None:
    """The number of a cell, 0 or more; pandas writes 1.0 where a column has gaps."""
    found = _WHOLE_NUMBER.fullmatch(cell)
    return found and int(found[1])


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    cells = dict(pairs)
    if len(cells) < len(pairs):
        raise ValueError("an object has a name twice")
    return cells


def quoted(names: Sequence[str], most: int = 10) -> str:
    """Names for a message, `'a', 'b'`, the first few of many."""
    some = ", ".join(shown(name, 100) for name in names[:most])
    return some if len(names) <= most else f"{some}, … ({len(names)} in all)"
