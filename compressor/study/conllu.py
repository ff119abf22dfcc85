"""Sentences with their dependencies from CoNLL-U files (Universal Dependencies, version 2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from compressor.errors import InputError
from compressor.study.attention import Sentence
from compressor.tasks.tables import read_lines


def read_conllu(path: str) -> list[Sentence]:
    """Read all sentences of a file, which empty lines separate.

    Raises:
        InputError: it cannot be read, or a sentence is malformed; the message has its number.
    """
    sentences: list[Sentence] = []
    lines = (line for line in read_lines(path) if not line.startswith("#"))
    for has_words, rows in groupby(lines, bool):
        if not has_words:
            continue
        try:
            sentences.append(_sentence([row.split("\t") for row in rows]))
        except (ValueError, KeyError) as error:
            reason = f"there is no word {error}" if isinstance(error, KeyError) else error
            raise InputError(
                f"{path}: sentence {len(sentences) + 1} is not CoNLL-U: {reason}; correct it, or "
                "leave it out",
                id="conllu-malformed",
            ) from error
    return sentences


def _sentence(rows: Sequence[list[str]]) -> Sentence:
    """Make a sentence from the columns of its lines.

    A multiword token that is spelled as its words ("don't": "do" + "n't") stays several words.
    Another one (German "im" for "in dem") is one word. Arcs inside a word, empty nodes (8.1) and
    subtypes of relations (what follows the colon in `nsubj:pass`) are left out.

    Raises:
        ValueError: a line has other columns.
        KeyError: a word or a head is missing.
    """
    words: dict[int, list[str]] = {}
    multiword: dict[int, list[str]] = {}  # by the number of the first word
    for row in rows:
        if len(row) != 10:
            raise ValueError(f"{row} is not ten columns")
        row[1] = row[1].replace(" ", "")  # a few languages allow spaces in numbers
        first, _, last = row[0].partition("-")
        if "." not in first:
            (multiword if last else words)[int(first)] = row
    text, ends = "", list[int]()
    index = {0: -1}  # number in the file, 0 for the root -> word
    while (number := len(index)) <= len(words):
        row = multiword.get(number, words[number])
        members = range(number, max(number, int(row[0].partition("-")[2] or number)) + 1)
        forms = [words[member][1] for member in members]
        if "".join(forms) != row[1]:
            forms = [row[1]]
        index |= {n: len(ends) + min(n - number, len(forms) - 1) for n in members}
        for form in forms:
            text += form
            ends.append(len(text))
        text += "" if "SpaceAfter=No" in row[9].split("|") else " "
    arcs = []
    for number, row in words.items():
        dependent, head = index[number], index[int(row[6])]
        if head >= 0 and dependent != head:  # no root, none inside a word
            arcs.append((dependent, head, row[7].partition(":")[0]))
    return Sentence(text.rstrip(), tuple(ends), tuple(arcs))
