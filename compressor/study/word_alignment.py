"""Which token belongs to which word, for sentences tokenized as a whole.

Sentences are not tokenized word by word: that would put a space before every comma, which a
translator has hardly ever seen. Fast tokenizers tell which characters a token covers. For others
(Marian) the pieces are matched with the text; a sentence whose pieces spell something else, because
the tokenizer normalizes rare characters, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compressor.study.conllu import Sentence

NO_WORD = -1
_SPACE = "▁"  # SentencePiece's


@dataclass(frozen=True)
class Tokens:
    """A tokenized sentence: ids, and the word of each token (`NO_WORD` for special tokens)."""

    sentence: Sentence
    ids: tuple[int, ...]
    words: tuple[int, ...]


def tokenize(
    tokenizer: Any, sentences: Sequence[Sentence], max_tokens: int
) -> tuple[list[Tokens], int]:
    """Token ids with special tokens, and words, of all sentences that can be aligned.

    Returns:
        The sentences, and how many were left out: too long, or normalized by the tokenizer so that
        not every word has a token of its own.
    """
    aligned = []
    for sentence in sentences:
        ids, words = (_fast if tokenizer.is_fast else _slow)(tokenizer, sentence)
        # An arc to a word without a token could never be followed.
        complete = len(np.unique(words[words >= 0])) == len(sentence.words)
        # A sentence that is too long is not cut, which would take words from its arcs.
        if complete and len(ids) <= max_tokens:
            aligned.append(Tokens(sentence, tuple(ids), tuple(words.tolist())))
    return aligned, len(sentences) - len(aligned)


def _word_at(sentence: Sentence) -> NDArray[np.intp]:
    """The word that each character belongs to [characters]; a space belongs to the next word."""
    ends = np.zeros(len(sentence.text) + 1, dtype=np.intp)
    for start, word in zip(sentence.starts, sentence.words, strict=True):
        ends[start + len(word)] += 1
    return np.cumsum(ends)[:-1]  # the number of words that ended before


def _fast(tokenizer: Any, sentence: Sentence) -> tuple[list[int], NDArray[np.intp]]:
    """Ids and words of the tokens, by the characters that each token covers."""
    # `verbose=False`: `tokenize` leaves out sentences that are too long, without a warning.
    encoded = tokenizer(sentence.text, return_offsets_mapping=True, verbose=False)
    # [tokens, (first, end)]
    spans = np.array(encoded["offset_mapping"], dtype=np.intp).reshape(-1, 2)
    words = np.full(len(spans), NO_WORD, dtype=np.intp)
    covers = spans[:, 1] > spans[:, 0]  # special tokens cover nothing
    words[covers] = _word_at(sentence)[spans[covers, 0]]
    return list(encoded["input_ids"]), words


def _slow(tokenizer: Any, sentence: Sentence) -> tuple[list[int], NDArray[np.intp]]:
    """Ids and words of the tokens, by the pieces that spell the text; `NO_WORD` if they do not."""
    ids = list(tokenizer(sentence.text, verbose=False)["input_ids"])
    words = np.full(len(ids), NO_WORD, dtype=np.intp)
    pieces = tokenizer.tokenize(sentence.text)
    bare = [piece.replace(_SPACE, "") for piece in pieces]
    piece_ids = tokenizer.convert_tokens_to_ids(pieces)
    # Where the pieces begin among the ids, after special tokens.
    first = next((i for i in range(len(ids)) if ids[i : i + len(pieces)] == piece_ids), None)
    if "".join(bare) != "".join(sentence.words) or first is None or not pieces:
        return ids, words
    lengths = np.array([len(piece) for piece in bare])  # [pieces]
    ends = np.cumsum([len(word) for word in sentence.words])  # [words]
    # Positions count letters, not spaces. A piece that is only a space belongs to the next word.
    begins = np.minimum(np.cumsum(lengths) - lengths, ends[-1] - 1)
    words[first : first + len(pieces)] = np.searchsorted(ends, begins, side="right")
    return ids, words
