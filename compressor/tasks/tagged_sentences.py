"""Sentences of words with a tag each: columns as in CoNLL, or JSONL with two lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from compressor.errors import InputError, UsageError
from compressor.storage.text_files import format_suffix
from compressor.tasks.cells import require_columns
from compressor.tasks.rows import ColumnNames
from compressor.tasks.tables import JSONL, quoted, read_lines, read_table, shortened

COLUMN_FILES = (".conll", ".bio", ".iob", ".iob2", ".tsv", ".txt")
_DOCUMENT = "-DOCSTART-"  # a line of CoNLL-2003 between documents

TagReader = Callable[[str, str], str]  # the label of a tag, by the tag and `file:line`
Sentence = tuple[list[str], list[str]]  # words and their tags


def read_sentences(
    spec: str, columns: ColumnNames, header: bool, read_tag: TagReader
) -> Iterator[Sentence]:
    """All sentences of a file, each checked when it is read.

    `columns` names the lists of JSONL alone.
    """
    suffix = format_suffix(spec)
    if suffix == JSONL:
        return _sentences_of_lists(spec, columns, header, read_tag)
    if suffix not in COLUMN_FILES:
        known = ", ".join((JSONL, *COLUMN_FILES))
        raise InputError(
            f"the format of {spec} is not known by its suffix; use one of {known}",
            id="format-unknown",
        )
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
    return _sentences_of_columns(spec, read_tag)


def _sentences_of_columns(path: str, read_tag: TagReader) -> Iterator[Sentence]:
    """Sentences between empty lines; a word is the first cell of its line, its tag the last."""
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


def _sentences_of_lists(
    path: str, columns: ColumnNames, header: bool, read_tag: TagReader
) -> Iterator[Sentence]:
    """A list of words and a list of tags in each object."""
    table = read_table(path, header)
    names = columns.get("text_column", "tokens"), columns.get("label_column", "tags")
    require_columns(table, names)
    for record in table.records:
        where = record.where
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
