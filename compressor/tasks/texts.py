"""Files of texts without answers, of any size: what `--distill-text` and the like name.

A text a line, or of `.jsonl` an object a line; both may be packed (`.txt.gz`, `.jsonl.zst`). A line
ends with LF or CR LF; white space around a text, or a byte order mark before it, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compressor.errors import InputError, did_you_mean
from compressor.storage.input_files import MIB
from compressor.storage.text_files import REPORTED_LINES, format_suffix, is_packed, raw_lines
from compressor.tasks.reading import RowReader
from compressor.tasks.tables import BOM, JSONL, decoded, parse_object, quoted, reading

DISTILL, SOURCE, TARGET = "--distill-text", "--source-text", "--target-text"
_WANTED = {
    DISTILL: "sentences in the source language",
    SOURCE: "texts like those that the model will read",
    TARGET: "sentences in the target language",
}


@dataclass(frozen=True)
class TextColumn:
    """A text of a JSON object.

    Args:
        name: that an option gives; None where none does.
        usual: names of which the first one that is there is taken otherwise.
    """

    name: str | None
    usual: tuple[str, ...]


@dataclass(frozen=True)
class TextFile:
    """A file of texts; see `open_texts`.

    Args:
        option: that names it, as typed.
        keys: of JSON objects, those of the texts; none of plain lines.
        pairs: every line is two texts, of plain lines with a tab between them.
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
        """All lines, unpacked.

        Raises:
            InputError: the file cannot be read.
        """
        with reading(self.path, again=True) as file:
            yield from raw_lines(file, self.path)

    def pieces(self) -> Iterator[bytes]:
        """All bytes, unpacked, in pieces of a mebibyte; raises as `lines`."""
        with reading(self.path, again=True) as file:
            yield from iter(lambda: file.read(MIB), b"")

    def texts(self, line: bytes, number: int | None = None) -> tuple[str, ...]:
        """The texts of a line; empty ones, if it holds none.

        Args:
            number: of the line, for messages; None where the file was checked before.

        Raises:
            InputError: it is not UTF-8, no JSON object with the keys, or no pair.
        """
        text = decoded(line.removeprefix(BOM), self._place(number)).strip()
        if not text:
            return ("",)
        if self.keys:
            texts = self._of_object(text, number)
        else:
            texts = tuple(text.split("\t")) if self.pairs else (text,)
        if self.pairs and any(texts) and not (len(texts) == 2 and all(map(str.strip, texts))):
            how = f" in {quoted(self.keys)}" if self.keys else " with one tab between them"
            raise InputError(
                f"{self._place(number)}: the line is not two texts{how}; the model reads pairs",
                id=self._id("not-pairs"),
            )
        return texts

    def each(self, progress: Callable[[int], None] = lambda lines: None) -> Iterator[str]:
        """All texts of all lines, without empty ones.

        Args:
            progress: called with the number of lines that are read, of long files.
        """
        for number, line in enumerate(self.lines(), 1):
            yield from filter(None, self.texts(line, number))
            if number % REPORTED_LINES == 0:
                progress(number)

    def empty(self) -> InputError:
        """The error where no line holds text."""
        return InputError(
            f"{self.path} holds no text; give {_WANTED[self.option]}, a line each",
            id=self._id("empty"),
        )

    def _of_object(self, text: str, number: int | None) -> tuple[str, ...]:
        place = self._place(number)
        cells = parse_object(text, place)
        return tuple(self._cell(cells, key, place) for key in self.keys)

    def _cell(self, cells: Mapping[str, object], key: str, place: str) -> str:
        if key not in cells:
            raise InputError(
                f"{place}: the object has no {key!r}; give every line the columns of the first",
                id="cell-missing",
            )
        value = cells[key]
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            value = " ".join(value)  # the words of a text, as in rows for token classification
        if not isinstance(value, str):
            raise InputError(f"{place}: {key!r} is not a text", id="cell-not-text")
        return value.strip()

    def _place(self, number: int | None) -> str:
        return f"{self.path}" if number is None else f"{self.path}:{number}"

    def _id(self, problem: str) -> str:
        return f"{self.option.removeprefix('--')}-{problem}"


def open_texts(
    path: Path, option: str, columns: Sequence[TextColumn] = (), *, pairs: bool = False
) -> TextFile:
    """A file of texts; of JSONL the first object says which keys there are.

    Args:
        option: that names the file, as typed.
        columns: of JSON objects. Without a given or usual name, the first one is the object's
            first key, and others are left out.
        pairs: both columns must be there.

    Raises:
        InputError: the first line is no object, or has not the keys that are needed.
    """
    plain = TextFile(path, option, pairs=pairs)
    if format_suffix(path) != JSONL:
        return plain
    for number, line in enumerate(plain.lines(), 1):
        place = f"{path}:{number}"
        if text := decoded(line.removeprefix(BOM), place).strip():
            names = tuple(parse_object(text, place))
            keys = _keys(names, columns, place)
            if pairs and len(keys) < 2:
                raise InputError(
                    f"{place}: the object has one text, {quoted(keys)}, and the model reads pairs; "
                    "name the second one with --text-pair-column",
                    id=plain._id("not-pairs"),
                )
            return TextFile(path, option, keys, pairs)
    raise plain.empty()


def texts_of(path: Path, option: str, task: RowReader, given: Mapping[str, str | None]) -> TextFile:
    """The texts of `--source-text` or `--target-text`; see `open_texts`.

    Args:
        given: option of a column, as a field of a recipe -> its name.
    """
    options = ("target_column",) if option == TARGET else task.inputs
    return open_texts(path, option, columns_of(task, options, given))


def columns_of(
    task: RowReader, options: Sequence[str], given: Mapping[str, str | None]
) -> list[TextColumn]:
    """The columns that options name; arguments are those of `texts_of`."""
    return [TextColumn(given.get(name), task.usual_columns.get(name, ())) for name in options]


def _keys(names: Sequence[str], columns: Sequence[TextColumn], place: str) -> tuple[str, ...]:
    if not names:
        raise InputError(f"{place}: the object is empty", id="cell-missing")
    found: list[str] = []
    for column in columns:
        if column.name is not None and column.name not in names:
            raise InputError(
                f"{place}: the object has no {column.name!r}; it has {quoted(names)}"
                f"{did_you_mean(column.name, names)}",
                id="column-missing",
            )
        key = column.name or next((name for name in column.usual if name in names), None)
        if key is None and not found:
            key = names[0]
        found += [] if key is None else [key]
    return tuple(found)
