"""Which token belongs to which word, for sentences tokenized as they are written.

Tokens are not made word by word: that would put a space before every comma, which a translator has
hardly seen. Fast tokenizers say which characters a token covers; of others (Marian) the pieces
spell the text, and a sentence that they do not spell (rare characters rewritten) is left out.
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
        The sentences, and how many were left out: too long, or rewritten by the tokenizer so that
        not every word has a token.
    """
    found = []
    for sentence in sentences:
        # Longer ones are left out below: no need for the tokenizer to warn of them.
        ids, words = (_fast if tokenizer.is_fast else _slow)(tokenizer, sentence)
        complete = len(np.unique(words[words >= 0])) == len(sentence.words)
        if complete and len(ids) <= max_tokens:
            found.append(Tokens(sentence, tuple(ids), tuple(words.tolist())))
    return found, len(sentences) - len(found)


def _word_at(sentence: Sentence) -> NDArray[np.intp]:
    """The word each character belongs to; a space to the word after it."""
    place = np.zeros(len(sentence.text) + 1, dtype=np.intp)
    for start, word in zip(sentence.starts, sentence.words, strict=True):
        place[start + len(word)] += 1  # what follows a word belongs to the next
    return np.cumsum(place)[:-1]


def _fast(tokenizer: Any, sentence: Sentence) -> tuple[list[int], NDArray[np.intp]]:
    encoded = tokenizer(sentence.text, return_offsets_mapping=True, verbose=False)
    spans = np.array(encoded["offset_mapping"], dtype=np.intp).reshape(-1, 2)
    words = np.full(len(spans), NO_WORD, dtype=np.intp)
    covers = spans[:, 1] > spans[:, 0]
    words[covers] = _word_at(sentence)[spans[covers, 0]]
    return list(encoded["input_ids"]), words


def _slow(tokenizer: Any, sentence: Sentence) -> tuple[list[int], NDArray[np.intp]]:
    ids = list(tokenizer(sentence.text, verbose=False)["input_ids"])
    words = np.full(len(ids), NO_WORD, dtype=np.intp)
    pieces = tokenizer.tokenize(sentence.text)
    bare = [piece.replace(_SPACE, "") for piece in pieces]
    own = tokenizer.convert_tokens_to_ids(pieces)
    first = next((i for i in range(len(ids)) if ids[i : i + len(own)] == own), None)
    if "".join(bare) != "".join(sentence.words) or first is None or not pieces:
        return ids, words
    lengths = np.array([len(piece) for piece in bare])
    ends = np.cumsum([len(word) for word in sentence.words])
    # A piece that is only a space belongs to the word after it.
    begins = np.minimum(np.cumsum(lengths) - lengths, ends[-1] - 1)
    words[first : first + len(pieces)] = np.searchsorted(ends, begins, side="right")
    return ids, words
