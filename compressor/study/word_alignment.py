"""Which word each token of a sentence belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compressor.study.attention import NO_WORD, Sentence


def tokenize(tokenizer: Any, sentences: Sequence[Sentence], max_tokens: int) -> list[Sentence]:
    """Align words with tokens.

    The text is not tokenized word by word: that would put a space before every comma, which
    translators never saw.

    Args:
        tokenizer: of the checkpoint.
        sentences: with words.
        max_tokens: the model's limit.

    Returns:
        The sentences with tokens, without those that are too long, or normalized so that not every
        word has a token of its own.
    """
    aligned = []
    for sentence in sentences:
        ids, starts = _tokens(tokenizer, sentence.text)
        # The number of words that ended before; a space belongs to the next word.
        at = np.searchsorted(sentence.ends, starts, side="right")
        words = np.where(starts < 0, NO_WORD, at)
        # An arc to a word without a token could never be followed.
        complete = len(np.unique(words[words >= 0])) == len(sentence.ends)
        # A sentence that is too long is not cut, which would take words from its arcs.
        if complete and len(ids) <= max_tokens:
            aligned.append(replace(sentence, ids=tuple(ids), words=tuple(words.tolist())))
    return aligned


def _tokens(tokenizer: Any, text: str) -> tuple[list[int], NDArray[np.intp]]:
    """Ids, and the first character that each token covers; -1 for special tokens.

    A slow tokenizer's are found by the pieces that spell the text; all are -1 if they do not.
    """
    # `verbose=False`: `tokenize` leaves out sentences that are too long, without a warning.
    if tokenizer.is_fast:
        encoded = tokenizer(text, return_offsets_mapping=True, verbose=False)
        # [tokens, (first, end)]
        spans = np.array(encoded["offset_mapping"], dtype=np.intp).reshape(-1, 2)
        return list(encoded["input_ids"]), np.where(spans[:, 1] > spans[:, 0], spans[:, 0], -1)
    ids = list(tokenizer(text, verbose=False)["input_ids"])
    starts = np.full(len(ids), -1)
    pieces = tokenizer.tokenize(text)
    bare = [piece.replace("▁", "") for piece in pieces]  # SentencePiece's space
    piece_ids = tokenizer.convert_tokens_to_ids(pieces)
    # Where the pieces begin among the ids, after special tokens.
    first = next((i for i in range(len(ids)) if ids[i : i + len(pieces)] == piece_ids), None)
    letters = [position for position, character in enumerate(text) if character != " "]
    if letters and first is not None and "".join(bare) == text.replace(" ", ""):
        # A piece that is only a space begins with the next letter.
        begins = np.cumsum([0, *map(len, bare[:-1])]).clip(max=len(letters) - 1)
        starts[first : first + len(pieces)] = np.array(letters)[begins]
    return ids, starts
