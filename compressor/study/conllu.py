"""Sentences with dependencies from a CoNLL-U file (Universal Dependencies, version 2), tokenized.

A multiword token that is spelled as its words ("don't": "do" + "n't") stays several words. Another
one (German "im" for "in dem") becomes one word, and dependencies inside it are left out. So are
empty nodes (8.1) and subtypes of relations (what follows the colon in `nsubj:pass`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.tasks.tables import read_lines

COLUMNS = 10
NO_WORD = -1
_SPACE = "▁"  # SentencePiece's


@dataclass(frozen=True)
class Sentence:
    """A sentence with the end of each word in its text, and its arcs but the root's.

    Tokenized, it has ids, and the word of each token (`NO_WORD` for special tokens).
    """

    text: str
    ends: tuple[int, ...]
    arcs: tuple[tuple[int, int, str], ...]  # dependent, head, relation; numbers of words from 0
    ids: tuple[int, ...] = ()
    words: tuple[int, ...] = ()


def read_conllu(path: str) -> list[Sentence]:
    """All sentences of a file; an error has the last line of its sentence."""
    sentences: list[Sentence] = []
    rows: list[list[str]] = []
    # Sentences are separated by empty lines, which the last one may lack.
    for number, line in enumerate(chain(read_lines(path), [""])):
        if line and not line.startswith("#"):
            rows.append(line.split("\t"))
        elif not line and rows:
            try:
                sentences.append(_sentence(rows))
            except (ValueError, KeyError) as error:
                reason = f"there is no word {error}" if isinstance(error, KeyError) else error
                raise InputError(
                    f"{path}:{number}: the sentence that ends here is not CoNLL-U: {reason}; "
                    "correct it, or leave it out",
                    id="conllu-malformed",
                ) from error
            rows = []
    if not sentences:
        raise InputError(
            f"{path} holds no sentences; give a CoNLL-U file", id="conllu-without-sentences"
        )
    return sentences


def _sentence(rows: Sequence[list[str]]) -> Sentence:
    """A sentence from the columns of its lines; ValueError or KeyError if that is impossible."""
    words: dict[int, list[str]] = {}
    multiword: dict[int, list[str]] = {}  # by the number of the first word
    for row in rows:
        if len(row) != COLUMNS:
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


def tokenize(
    tokenizer: Any, sentences: Sequence[Sentence], max_tokens: int
) -> tuple[list[Sentence], int]:
    """Sentences with tokens, and how many cannot be aligned: too long, or words are changed.

    Not word by word: that would put a space before every comma, which translators never saw.
    """
    aligned = []
    for sentence in sentences:
        ids, starts = (_fast if tokenizer.is_fast else _slow)(tokenizer, sentence.text)
        # The number of words that ended before; a space belongs to the next word.
        at = np.searchsorted(sentence.ends, starts, side="right")
        words = np.where(starts < 0, NO_WORD, at)
        # An arc to a word without a token could never be followed.
        complete = len(np.unique(words[words >= 0])) == len(sentence.ends)
        # A sentence that is too long is not cut, which would take words from its arcs.
        if complete and len(ids) <= max_tokens:
            aligned.append(replace(sentence, ids=tuple(ids), words=tuple(words.tolist())))
    return aligned, len(sentences) - len(aligned)


def _fast(tokenizer: Any, text: str) -> tuple[list[int], NDArray[np.intp]]:
    """Ids, and the first character that each token covers; -1 for special tokens."""
    # `verbose=False`: `tokenize` leaves out sentences that are too long, without a warning.
    encoded = tokenizer(text, return_offsets_mapping=True, verbose=False)
    # [tokens, (first, end)]
    spans = np.array(encoded["offset_mapping"], dtype=np.intp).reshape(-1, 2)
    return list(encoded["input_ids"]), np.where(spans[:, 1] > spans[:, 0], spans[:, 0], -1)


def _slow(tokenizer: Any, text: str) -> tuple[list[int], NDArray[np.intp]]:
    """As `_fast`, by the pieces that spell the text; all -1 if they do not."""
    ids = list(tokenizer(text, verbose=False)["input_ids"])
    starts = np.full(len(ids), -1)
    pieces = tokenizer.tokenize(text)
    bare = [piece.replace(_SPACE, "") for piece in pieces]
    piece_ids = tokenizer.convert_tokens_to_ids(pieces)
    # Where the pieces begin among the ids, after special tokens.
    first = next((i for i in range(len(ids)) if ids[i : i + len(pieces)] == piece_ids), None)
    letters = [position for position, character in enumerate(text) if character != " "]
    if letters and first is not None and "".join(bare) == text.replace(" ", ""):
        # A piece that is only a space begins with the next letter.
        begins = np.cumsum([0, *map(len, bare[:-1])]).clip(max=len(letters) - 1)
        starts[first : first + len(pieces)] = np.array(letters)[begins]
    return ids, starts
