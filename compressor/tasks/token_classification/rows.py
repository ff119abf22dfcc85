"""Sentences of words with a tag each: CoNLL columns, or JSONL with two lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from compressor.errors import InputError, UsageError
from compressor.storage.text_files import format_suffix
from compressor.tasks.cells import require_columns
from compressor.tasks.rows import RowTexts
from compressor.tasks.tables import JSONL, RowTable, quoted, read_lines, read_table, shortened

COLUMN_FILES = (".conll", ".bio", ".iob", ".iob2", ".tsv", ".txt")
_DOCUMENT = "-DOCSTART-"  # a line of CoNLL-2003 between documents
_TOKENS, _TAGS = "tokens", "tags"

TagReader = Callable[[str, str], str]
Sentence = tuple[list[str], list[str]]


def read(spec: str, columns: Mapping[str, str], header: bool, read_tag: TagReader) -> RowTexts:
    """Sentences, their words joined by spaces, and the tags of their words likewise.

    Args:
        columns: option -> name of the column, where one was given; of JSONL alone.
        read_tag: the label that a tag means, by the tag and its place.

    Raises:
        UsageError: options that the format does not have.
        InputError: a malformed line, with its place.
    """
    suffix = format_suffix(spec)
    if suffix != JSONL and suffix not in COLUMN_FILES:
        known = ", ".join((JSONL, *COLUMN_FILES))
        raise InputError(
            f"the format of {spec} is not known by its suffix; use one of {known}",
            id="format-unknown",
        )
    if suffix == JSONL:
        sentences = _objects(read_table(spec, header), columns, read_tag)
    else:
        _require_no_options(spec, columns, header)
        sentences = _columns(spec, read_tag)
    return RowTexts([spec], ((" ".join(words), None, " ".join(tags)) for words, tags in sentences))


def _require_no_options(spec: str, columns: Mapping[str, str], header: bool) -> None:
    if columns:
        raise UsageError(
            f"{spec} has a word and its tag in the first and last column; --text-column and "
            "--label-column name lists in JSONL: leave them out",
            id="columns-of-plain-text",
        )
    if not header:
        raise UsageError(
            f"{spec} has no header anyway; leave --no-header out", id="header-of-plain-text"
        )


def _columns(path: str, read_tag: TagReader) -> Iterator[Sentence]:
    """Sentences apart by empty lines; a word is the first cell of its line, its tag the last."""
    words: list[str] = []
    tags: list[str] = []
    width = 0
    for number, line in enumerate(chain(read_lines(path), [""]), 1):
        if line.startswith(_DOCUMENT) or not line.strip():
            if words:
                yield words, tags
                words, tags = [], []
            continue
        where = f"{path}:{number}"
        cells = [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
        width = width or len(cells)
        if len(cells) < 2 or len(cells) != width:
            wanted = "a word and its tag" if width < 2 else f"the {width} of the lines before"
            raise InputError(
                f"{where}: the number of columns is {len(cells)}; give {wanted}, and an empty line "
                "between sentences",
                id="cell-count-differs",
            )
        words.append(_word(cells[0], where))
        tags.append(_tag(cells[-1], where, read_tag))


def _objects(
    table: RowTable, columns: Mapping[str, str], read_tag: TagReader
) -> Iterator[Sentence]:
    """A list of words and a list of tags in each object."""
    names = columns.get("text_column", _TOKENS), columns.get("label_column", _TAGS)
    require_columns(table, names)
    for record in table.records:
        where = f"{table.path}:{record.line}"
        words, tags = (_list(record.cells.get(name), name, where) for name in names)
        if not words or len(words) != len(tags):
            raise InputError(
                f"{where}: there are {len(words)} words in {names[0]!r} and {len(tags)} tags in "
                f"{names[1]!r}; give one tag for each word",
                id="tags-do-not-match-words",
            )
        yield [_word(x, where) for x in words], [_tag(x, where, read_tag) for x in tags]


def _list(value: Any, name: str, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where}: {name!r} is not a list", id="cell-not-list")
    return value


def _word(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: the word {value!r:.40} is not a string", id="cell-not-text")
    if not value.strip():
        raise InputError(f"{where}: a word is empty", id="cell-empty")
    if len(value.split(" ")) > 1 or any(x in value for x in "\t\r\n"):
        raise InputError(
            f"{where}: the word {shortened(value, 40)!r} has a space in it; give its parts as "
            "words of their own",
            id="word-with-space",
        )
    return value


def _tag(value: Any, where: str, read_tag: TagReader) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise InputError(f"{where}: the tag {value!r:.40} is not a string", id="cell-not-text")
    if not value or len(value.split()) > 1:
        raise InputError(
            f"{where}: the tag {quoted([value])} is no single word", id="tag-not-a-word"
        )
    return read_tag(value, where)
