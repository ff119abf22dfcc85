"""Files of texts without answers, of any size: what `--distill-text` and the like name.

A text per line, or in `.jsonl` an object per line; both may be packed (`.txt.gz`, `.jsonl.zst`). A
line ends with LF or CR LF; white space around a text, or a byte order mark before it, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compressor.errors import InputError, did_you_mean
from compressor.storage.input_files import MIB
from compressor.storage.text_files import REPORTED_LINES, format_suffix, is_packed, raw_lines
from compressor.tasks.rows import RowReader
from compressor.tasks.tables import BOM, JSONL, decoded, parse_object, quoted, reading

DISTILL, SOURCE, TARGET = "--distill-text", "--source-text", "--target-text"
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
        with reading(self.path, again=True) as file:
            yield from raw_lines(file, self.path)

    def pieces(self) -> Iterator[bytes]:
        """All bytes, unpacked, in pieces of a mebibyte."""
        with reading(self.path, again=True) as file:
            yield from iter(lambda: file.read(MIB), b"")

    def texts(self, line: bytes, number: int | None = None) -> tuple[str, ...]:
        """The texts of a line, empty if it contains none; its number is for messages."""
        where = f"{self.path}" if number is None else f"{self.path}:{number}"
        text = decoded(line.removeprefix(BOM), where).strip()
        if not text:
            return ("",)
        if self.keys:
            cells = parse_object(text, where)
            texts = tuple(_text_of(cells, key, where) for key in self.keys)
        else:
            texts = tuple(text.split("\t")) if self.pairs else (text,)
        if self.pairs and any(texts) and not (len(texts) == 2 and all(map(str.strip, texts))):
            how = f" in {quoted(self.keys)}" if self.keys else " with one tab between them"
            raise InputError(
                f"{where}: the line is not two texts{how}; the model reads pairs",
                id=f"{self.option.removeprefix('--')}-not-pairs",
            )
        return texts

    def each(self, progress: Callable[[int], None] = lambda lines: None) -> Iterator[str]:
        """All texts of all lines, without empty ones; `progress` gets the number of lines."""
        for number, line in enumerate(self.lines(), 1):
            yield from filter(None, self.texts(line, number))
            if number % REPORTED_LINES == 0:
                progress(number)

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


def _text_of(cells: Mapping[str, object], key: str, where: str) -> str:
    if key not in cells:
        raise InputError(
            f"{where}: the object has no {key!r}; give every line the columns of the first",
            id="cell-missing",
        )
    value = cells[key]
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = " ".join(value)  # the words of a text, as in rows for token classification
    if not isinstance(value, str):
        raise InputError(f"{where}: {key!r} is not a text", id="cell-not-text")
    return value.strip()


def open_texts(
    path: Path, option: str, columns: Sequence[TextColumn] = (), *, pairs: bool = False
) -> TextFile:
    """A file of texts that an option names; in JSONL the first object decides which keys are read.

    Without a named or usual column, the first is the object's first key, and others are left out.
    `pairs` need both.

    Raises:
        InputError: the first line is not an object, or lacks keys that are needed.
    """
    plain = TextFile(path, option, pairs=pairs)
    if format_suffix(path) != JSONL:
        return plain
    for number, line in enumerate(plain.lines(), 1):
        where = f"{path}:{number}"
        text = decoded(line.removeprefix(BOM), where).strip()
        if not text:
            continue
        names = list(parse_object(text, where))
        if not names:
            raise InputError(f"{where}: the object is empty", id="cell-missing")
        keys: list[str] = []
        for column in columns:
            if column.name is not None and column.name not in names:
                raise InputError(
                    f"{where}: the object has no {column.name!r}; it has {quoted(names)}"
                    f"{did_you_mean(column.name, names)}",
                    id="column-missing",
                )
            key = column.name or next((name for name in column.usual if name in names), None)
            if key is not None:
                keys.append(key)
            elif not keys:
                keys.append(names[0])
        if pairs and len(keys) < 2:
            raise InputError(
                f"{where}: the object has one text, {quoted(keys)}, and the model reads pairs; "
                "name the second one with --text-pair-column",
                id=f"{option.removeprefix('--')}-not-pairs",
            )
        return TextFile(path, option, tuple(keys), pairs)
    raise plain.empty()


def texts_of(path: Path, option: str, task: RowReader, named: Mapping[str, str | None]) -> TextFile:
    """The texts of `--source-text` or `--target-text`; see `open_texts` and `columns_of`."""
    options = ("target_column",) if option == TARGET else task.inputs
    return open_texts(path, option, columns_of(task, options, named))


def columns_of(
    task: RowReader, options: Sequence[str], named: Mapping[str, str | None]
) -> list[TextColumn]:
    """The columns of options; `named` has the names that the user chose."""
    return [TextColumn(named.get(name), task.usual_columns.get(name, ())) for name in options]
