"""Sentences with dependencies from a CoNLL-U file (Universal Dependencies, version 2).

Words that are written together without changing ("do" + "n't") stay two words without a space;
where they do change (German "im" for "in dem") what is written is one word, and arcs inside it are
left out. Empty nodes (8.1) are left out, and of a relation's name what follows a colon.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compressor.errors import InputError
from compressor.tasks.tables import read_text

COLUMNS = 10
Arc = tuple[int, int, str]  # dependent, head, relation; numbers of words from 0


@dataclass(frozen=True)
class Sentence:
    """A sentence as it is written.

    Args:
        text: with the spaces that the file says there are.
        starts: where in `text` each word begins.
        words: the words.
        arcs: the dependencies between them, without the root.
    """

    text: str
    starts: tuple[int, ...]
    words: tuple[str, ...]
    arcs: tuple[Arc, ...]


@dataclass(frozen=True)
class _Row:
    line: int
    first: int  # its number, or the first and last of the range it spells
    last: int
    form: str
    head: str
    relation: str
    space: bool


def read_conllu(path: str) -> list[Sentence]:
    """All sentences of a file.

    Raises:
        InputError: no file, no sentence, or a malformed line; with its number.
    """
    found = [_sentence(path, rows) for rows in _blocks(path)]
    if not found:
        raise InputError(f"{path} holds no sentences; give a CoNLL-U file")
    return found


def _blocks(path: str) -> Iterator[list[_Row]]:
    block: list[_Row] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        line = line.removesuffix("\r")
        if line and not line.startswith("#"):
            row = _row(path, number, line)
            block += [] if row is None else [row]
        elif not line and block:
            yield block
            block = []
    if block:
        yield block


def _row(path: str, number: int, line: str) -> _Row | None:
    """A line's columns; None for an empty node."""
    cells = line.split("\t")
    if len(cells) != COLUMNS:
        raise InputError(
            f"{path}:{number}: {len(cells)} columns separated by tabs, but CoNLL-U has {COLUMNS}"
        )
    first, dash, last = cells[0].partition("-")
    if "." in first:
        return None
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise InputError(f"{path}:{number}: {cells[0]!r} is not the number of a word")
    return _Row(
        line=number,
        first=int(first),
        last=int(last or first),
        form=cells[1].replace(" ", ""),  # a few languages allow spaces in numbers
        head="" if dash else cells[6],
        relation=cells[7].partition(":")[0],
        space="SpaceAfter=No" not in cells[9].split("|"),
    )


def _sentence(path: str, rows: list[_Row]) -> Sentence:
    plain = {row.first: row for row in rows if row.head}
    spelled = {row.first: row for row in rows if not row.head}
    if list(plain) != list(range(1, len(plain) + 1)):
        raise InputError(
            f"{path}:{rows[0].line}: the words of the sentence are not numbered 1, 2, …"
        )
    text, starts, words = "", [], []
    place: dict[int, int] = {0: -1}  # number in the file -> number of the word
    number = 1
    while number <= len(plain):
        row = spelled.get(number, plain[number])
        members = [plain[n] for n in range(number, min(row.last, len(plain)) + 1)]
        parts = [member.form for member in members]
        for member in members:
            split = "".join(parts) == row.form
            if split or member is members[0]:
                starts.append(len(text))
                words.append(member.form if split else row.form)
                text += words[-1]
            place[member.first] = len(words) - 1
        text += " " if row.space else ""
        number = members[-1].first + 1
    arcs = [_arc(path, row, place) for row in plain.values()]
    real = [arc for arc in arcs if arc[1] >= 0 and arc[0] != arc[1]]
    return Sentence(text.rstrip(), tuple(starts), tuple(words), tuple(real))


def _arc(path: str, row: _Row, place: dict[int, int]) -> Arc:
    if not row.head.isdecimal() or int(row.head) not in place:
        raise InputError(f"{path}:{row.line}: {row.head!r} is not the number of a head")
    return place[row.first], place[int(row.head)], row.relation
