"""Files of texts without answers, of any size: what `--distill-text` and the like name.

A text per line, or in `.jsonl` an object per line. White space around a text is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compressor.errors import InputError
from compressor.storage.input_files import MIB
from compressor.storage.text_files import REPORTED_LINES, format_suffix, is_packed, raw_lines
from compressor.tasks import tables
from compressor.tasks.rows import RowReader

DISTILL = "--distill-text"
SOURCE = "--source-text"
TARGET = "--target-text"
_WANTED = {
    DISTILL: "sentences in the source language",
    SOURCE: "texts like those that the model will read",
    TARGET: "sentences in the target language",
}


@dataclass(frozen=True)
class TextColumn:
    """A text of a JSON object: the name from an option, else the first of the usual ones."""

    name: str | None
    usual: tuple[str, ...]


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
        text = tables.decoded(line.removeprefix(tables.BOM), where).strip()
        if not text:
            return ("",)
        texts = tuple(text.split("\t")) if self.pairs else (text,)
        if self.keys:
            cells = tables.parse_json_of(text, where)
            for key, value in cells.items():
                # The words of a text, as in rows for token classification.
                if isinstance(value, list) and all(isinstance(word, str) for word in value):
                    cells[key] = " ".join(value)
            row = tables.Record(where, cells)
            texts = tuple(row.text(key, blank=True).strip() for key in self.keys)
        if self.pairs and any(texts) and not (len(texts) == 2 and all(map(str.strip, texts))):
            how = f" in {tables.quoted(self.keys)}" if self.keys else " with one tab between them"
            raise self._not_pairs(f"{where}: the line is not two texts{how}")
        return texts

    def each(self, progress: Callable[[int], None] = lambda lines: None) -> Iterator[str]:
        """All texts of all lines, without empty ones; `progress` gets the number of lines."""
        for number, line in enumerate(self.lines(), 1):
            yield from filter(None, self.texts(line, number))
            if number % REPORTED_LINES == 0:
                progress(number)

    def with_keys(self, columns: Sequence[TextColumn]) -> TextFile:
        """The file with the keys of JSON's first object that are read.

        Args:
            columns: each of a name, or of the first usual name that the object has. Without both
                the first is the object's first key, and others are left out.

        Raises:
            InputError: the object lacks a key that is needed.
        """
        for number, line in enumerate(self.lines(), 1):
            where = f"{self.path}:{number}"
            text = tables.decoded(line.removeprefix(tables.BOM), where).strip()
            names = list(tables.parse_json_of(text, where)) if text else []
            if not names:
                continue
            keys: list[str] = []
            for column in columns:
                if column.name is not None and column.name not in names:
                    raise tables.column_missing(where, column.name, names)
                usual = [name for name in column.usual if name in names]
                if column.name or usual or not keys:
                    keys.append(column.name or [*usual, *names][0])
            if self.pairs and len(keys) < 2:
                raise self._not_pairs(f"{where}: the object has one text, {tables.quoted(keys)}")
            return TextFile(self.path, self.option, tuple(keys), self.pairs)
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
    path: Path, option: str, columns: Sequence[TextColumn] = (), *, pairs: bool = False
) -> TextFile:
    """Open a file of texts that an option names.

    In JSONL the first object decides which keys are read.

    Args:
        path: the file.
        option: that names it.
        columns: of JSON objects.
        pairs: whether every line is two texts, which then need two columns.

    Raises:
        InputError: the first line is no object, or lacks the keys that are needed.
    """
    plain = TextFile(path, option, pairs=pairs)
    return plain.with_keys(columns) if format_suffix(path) == tables.JSONL else plain


def texts_of(path: Path, option: str, task: RowReader, named: Mapping[str, str | None]) -> TextFile:
    """The texts of `--source-text` or `--target-text`; see `open_texts` and `columns_of`."""
    options = ("target_column",) if option == TARGET else task.inputs
    return open_texts(path, option, columns_of(task, options, named))


def columns_of(
    task: RowReader, options: Sequence[str], named: Mapping[str, str | None]
) -> list[TextColumn]:
    """The columns of options; `named` has the names that the user chose."""
    return [TextColumn(named.get(name), task.usual_columns.get(name, ())) for name in options]
