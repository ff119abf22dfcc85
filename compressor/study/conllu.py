"""Sentences with dependencies from a CoNLL-U file (Universal Dependencies, version 2).

A multiword token whose spelling is that of its words ("don't": "do" + "n't") stays several words,
without a space between them. One that is spelled differently (German "im" for "in dem") becomes one
word, and dependencies inside it are left out. So are empty nodes (8.1) and subtypes of relations
(what follows the colon in `nsubj:pass`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compressor.errors import InputError
from compressor.tasks.tables import read_lines

COLUMNS = 10
Arc = tuple[int, int, str]  # dependent, head, relation; numbers of words from 0


@dataclass(frozen=True)
class Sentence:
    """A sentence with its dependencies.

    Args:
        text: with spaces where the file does not say `SpaceAfter=No`.
        starts: where in `text` each word begins.
        arcs: without the root's.
    """

    text: str
    starts: tuple[int, ...]
    words: tuple[str, ...]
    arcs: tuple[Arc, ...]


@dataclass(frozen=True)
class _Row:
    line: int
    first: int  # the word's number; of a multiword token, the numbers of its first and last word
    last: int
    form: str
    head: str
    relation: str
    space: bool


def read_conllu(path: str) -> list[Sentence]:
    """All sentences of a file.

    Raises:
        InputError: no file, no sentence, or a malformed line; the message has its number.
    """
    sentences = [_sentence(path, rows) for rows in _blocks(path)]
    if not sentences:
        raise InputError(
            f"{path} holds no sentences; give a CoNLL-U file", id="conllu-without-sentences"
        )
    return sentences


def _blocks(path: str) -> Iterator[list[_Row]]:
    """The rows of each sentence; sentences are separated by empty lines."""
    block: list[_Row] = []
    for number, line in enumerate(read_lines(path), 1):
        if line and not line.startswith("#"):
            row = _row(path, number, line)
            block += [] if row is None else [row]
        elif not line and block:
            yield block
            block = []
    # The last sentence may lack its empty line.
    if block:
        yield block


def _row(path: str, number: int, line: str) -> _Row | None:
    """A line's columns; None for an empty node."""
    cells = line.split("\t")
    if len(cells) != COLUMNS:
        raise InputError(
            f"{path}:{number}: {len(cells)} columns separated by tabs, but CoNLL-U has {COLUMNS}",
            id="conllu-columns",
        )
    first, dash, last = cells[0].partition("-")
    if "." in first:
        return None
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise InputError(
            f"{path}:{number}: {cells[0]!r} is not the number of a word", id="conllu-word-number"
        )
    return _Row(
        line=number,
        first=int(first),
        last=int(last or first),
        form=cells[1].replace(" ", ""),  # a few languages allow spaces in numbers
        # A multiword token has no head: its words have.
        head="" if dash else cells[6],
        relation=cells[7].partition(":")[0],
        space="SpaceAfter=No" not in cells[9].split("|"),
    )


def _sentence(path: str, rows: list[_Row]) -> Sentence:
    plain = {row.first: row for row in rows if row.head}
    multiword = {row.first: row for row in rows if not row.head}
    if list(plain) != list(range(1, len(plain) + 1)):
        raise InputError(
            f"{path}:{rows[0].line}: the words of the sentence are not numbered 1, 2, …",
            id="conllu-numbering",
        )
    text, starts, words = "", [], []
    index: dict[int, int] = {0: -1}  # number in the file, 0 for the root -> index in `words`
    number = 1
    while number <= len(plain):
        row = multiword.get(number, plain[number])
        # A damaged file may give a multiword token more words than there are.
        members = [plain[n] for n in range(number, min(row.last, len(plain)) + 1)]
        keeps_spelling = "".join(member.form for member in members) == row.form
        for member in members:
            if keeps_spelling or member is members[0]:
                starts.append(len(text))
                words.append(member.form if keeps_spelling else row.form)
                text += words[-1]
            index[member.first] = len(words) - 1
        # Of a multiword token the file says it for the whole.
        text += " " if row.space else ""
        number = members[-1].first + 1
    arcs = [_arc(path, row, index) for row in plain.values()]
    kept = [arc for arc in arcs if arc[1] >= 0 and arc[0] != arc[1]]  # no root, none inside a word
    return Sentence(text.rstrip(), tuple(starts), tuple(words), tuple(kept))


def _arc(path: str, row: _Row, index: dict[int, int]) -> Arc:
    if not row.head.isdecimal() or int(row.head) not in index:
        raise InputError(
            f"{path}:{row.line}: {row.head!r} is not the number of a head", id="conllu-head-number"
        )
    return index[row.first], index[int(row.head)], row.relation
