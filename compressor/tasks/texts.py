"""Files of texts without answers, of any size: what `--distill-text` and the like name.

A text per line, or in `.jsonl` an object per line. Spaces and tabs around a text are left out, and
so are lines of white space alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from compressor.errors import InputError
from compressor.storage.input_files import MIB
from compressor.storage.text_files import REPORTED_LINES, format_suffix, is_packed, raw_lines
from compressor.tasks import tables
from compressor.tasks.rows import Reading, RowReader
from compressor.tasks.tab_cells import without_end

DISTILL = "--distill-text"
SOURCE = "--source-text"
TARGET = "--target-text"
_WANTED = {
    DISTILL: "sentences in the source language",
    SOURCE: "texts like those that the model will read",
    TARGET: "sentences in the target language",
}
_AROUND = " \t"  # other white space, such as a no-break space, is part of a text
_TABLES = (".tsv", ".csv", ".json", ".conll", ".bio", ".iob", ".iob2")


# Which columns are read, of those of the first object, whose place is for messages.
ColumnsOf = Callable[[str, Sequence[str]], Sequence[str]]


@dataclass(frozen=True)
class TextFile:
    """A file of texts, with the option that names it; see `open_texts`.

    `keys` are those of JSON objects. Plain lines of `pairs` have a tab between two texts.
    """

    path: Path
    option: str
    keys: tuple[str, ...] = ()
    pairs: bool = False

    @property
    def is_packed(self) -> bool:
        """Whether it must be unpacked before single lines of it can be read."""
        return is_packed(self.path)

    @property
    def said(self) -> str:
        """What is read of it, and from where; empty for plain lines."""
        return f"{self.path}: texts in {tables.quoted(self.keys)}" if self.keys else ""

    def lines(self) -> Iterator[bytes]:
        """All lines, unpacked."""
        with tables.reading(self.path, again=True) as file:
            yield from raw_lines(file, self.path)

    def pieces(self) -> Iterator[bytes]:
        """All bytes, unpacked, in pieces of a mebibyte."""
        with tables.reading(self.path, again=True) as file:
            yield from iter(lambda: file.read(MIB), b"")

    def texts(self, line: bytes, number: int | None = None) -> tuple[str, ...]:
        """The texts of a line, empty if it contains none; its number is for messages."""
        where = f"{self.path}" if number is None else f"{self.path}:{number}"
        text = without_end(tables.decoded(line.removeprefix(tables.BOM), where)).strip(_AROUND)
        if not text.strip():
            return ("",)
        texts = tuple(text.split("\t")) if self.pairs else (text,)
        if self.keys:
            cells = tables.parse_json_of(text, where)
            for key, value in cells.items():
                # The words of a text, as in rows for token classification.
                if isinstance(value, list) and all(isinstance(word, str) for word in value):
                    cells[key] = " ".join(value)
            row = tables.Record(where, cells)
            texts = tuple(row.text(key, blank=True).strip(_AROUND) for key in self.keys)
        filled = [text for text in texts if text.strip()]
        if self.pairs and filled and len(filled) + len(texts) != 4:
            how = f" in {tables.quoted(self.keys)}" if self.keys else " with one tab between them"
            raise self._not_pairs(f"{where}: the line is not two texts{how}")
        return tuple(text if text.strip() else "" for text in texts)

    def each(self, progress: Callable[[int], None] = lambda lines: None) -> Iterator[str]:
        """All texts of all lines, without empty ones; `progress` gets the number of lines."""
        for number, line in enumerate(self.lines(), 1):
            yield from filter(None, self.texts(line, number))
            if number % REPORTED_LINES == 0:
                progress(number)

    def with_keys(self, columns_of: ColumnsOf) -> TextFile:
        """The file with the keys of JSON's first object that are read.

        Args:
            columns_of: from the place of the object and its keys to those that are read.

        Raises:
            InputError: the object lacks a key that is needed.
        """
        for number, line in enumerate(self.lines(), 1):
            where = f"{self.path}:{number}"
            text = tables.decoded(line.removeprefix(tables.BOM), where)
            if text.strip():
                names = list(tables.parse_json_of(text, where))
                return replace(self, keys=tuple(columns_of(where, names)))
        raise self.empty()

    def count(self, progress: Callable[[int], None] = lambda lines: None) -> int:
        """The number of texts that are not empty, from the whole file; InputError for none."""
        count = sum(1 for _ in self.each(progress))
        if not count:
            raise self.empty()
        return count

    def empty(self) -> InputError:
        """The error where no line contains text."""
        return InputError(
            f"{self.path} holds no text; give {_WANTED[self.option]}, a line each",
            id=f"{self.option.removeprefix('--')}-empty",
        )

    def _not_pairs(self, problem: str) -> InputError:
        return InputError(
            f"{problem}, and the model reads pairs; give both, of JSON the second with "
            "--text-pair-column",
            id=f"{self.option.removeprefix('--')}-not-pairs",
        )


def open_texts(
    path: Path, option: str, columns_of: ColumnsOf | None = None, *, pairs: bool = False
) -> TextFile:
    """Open a file of texts that an option names.

    In JSONL the first object decides which keys are read.

    Args:
        path: the file.
        option: that names it.
        columns_of: from the place of the first object of JSON and its keys to those that are read.
        pairs: whether every line is two texts, which then need two columns.

    Raises:
        InputError: the first line is no object, or lacks the keys that are needed.
    """
    plain, suffix = TextFile(path, option, pairs=pairs), format_suffix(path)
    if suffix in _TABLES and not (pairs and suffix == ".tsv"):
        raise InputError(
            f"{path} is a table, and {option} reads a text a line, or {tables.JSONL}; give the "
            "texts alone",
            id="texts-in-table",
        )
    if suffix != tables.JSONL or columns_of is None:
        return plain
    return plain.with_keys(columns_of)


def texts_of(path: Path, option: str, task: RowReader, reading: Reading) -> TextFile:
    """The texts of `--source-text` or `--target-text`; see `open_texts`."""
    columns_of = partial(task.text_columns, reading=reading, pairs="some", targets=option == TARGET)
    return open_texts(path, option, columns_of)
