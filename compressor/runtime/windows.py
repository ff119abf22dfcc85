"""Questions with their contexts in windows that the model can read, and the best spans in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.entities import Span

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

Token = tuple[int, int]  # its id and its type

# The usual sizes for SQuAD, in tokens: of a window, of what two windows share, of a question, and
# of an answer.
WINDOW, STRIDE, MOST_QUESTION, MOST_ANSWER = 384, 128, 64, 30


@dataclass(frozen=True)
class Window:
    """A question and a part of its context.

    Args:
        ids, types: of all tokens.
        first: number of the context's first token; its tokens follow one another.
        offsets: characters in the context of each of its tokens.
        words: number of the word of each of them, None where the tokenizer knows none.
        cut: whether the question lost tokens.
    """

    ids: list[int]
    types: list[int]
    first: int
    offsets: list[Span]
    words: list[int | None]
    cut: bool

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """First and last token of some characters; None where the window does not hold them all.

        Args:
            start, end: characters of the context, the last one not included.
        """
        inside = [
            number
            for number, (first, last) in enumerate(self.offsets)
            if first < end and last > start and first < last
        ]
        if not inside or self.offsets[inside[0]][0] > start or self.offsets[inside[-1]][1] < end:
            return None
        return self.first + inside[0], self.first + inside[-1]

    def characters(self, start: int, end: int) -> Span:
        """Characters of the words from one token to another."""
        first, last = start - self.first, end - self.first
        word = self.words[first]
        while first and word is not None and self.words[first - 1] == word:
            first -= 1
        word = self.words[last]
        while last + 1 < len(self.words) and word is not None and self.words[last + 1] == word:
            last += 1
        return self.offsets[first][0], self.offsets[last][1]


class _Layout(NamedTuple):
    """Id and type of the special tokens before a question, between it and its context, and behind
    that; and the types of the tokens of both texts."""

    before: list[Token]
    between: list[Token]
    behind: list[Token]
    question: int
    context: int


def split(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    most: int,
    stride: int = STRIDE,
) -> list[list[Window]]:
    """The windows of each question: as many as its context needs, at least one.

    Args:
        tokenizer: without truncation and padding.
        most: tokens that the model can read; a window has `WINDOW` at most.
        stride: tokens of the context that two windows share; at most half of what a window holds.

    Raises:
        ValueError: the tokenizer makes no pairs, or there is no room in a window.
    """
    # Any pair shows which special tokens there are, and where.
    pair = tokenizer.encode("a", "a")
    parts = list(pair.sequence_ids)  # 0, 1, or None for special tokens
    if 0 not in parts or 1 not in parts:
        raise ValueError("it does not encode pairs of texts")
    question, context = parts.index(0), parts.index(1)
    behind = {text: len(parts) - parts[::-1].index(text) for text in (0, 1)}
    tokens, types = list(zip(pair.ids, pair.type_ids, strict=True)), pair.type_ids
    layout = _Layout(
        tokens[:question], tokens[behind[0] : context], tokens[behind[1] :],
        types[question], types[context],
    )  # fmt: skip
    special, most = sum(part is None for part in parts), min(most, WINDOW)
    if most < special + 2:
        raise ValueError(f"{special} special tokens leave no room in windows of {most} tokens")
    # Several questions often share a context, which is then tokenized once.
    distinct = list(dict.fromkeys(contexts))
    encodings = tokenizer.encode_batch(distinct, add_special_tokens=False)
    encoded = dict(zip(distinct, encodings, strict=True))
    asked = tokenizer.encode_batch(list(questions), add_special_tokens=False)
    # Half of the room is the context's.
    longest = min(MOST_QUESTION, (most - special) // 2)
    return [
        _windows(layout, question, encoded[context], longest, most, stride)
        for question, context in zip(asked, contexts, strict=True)
    ]


def _windows(
    layout: _Layout, question: Encoding, context: Encoding, longest: int, most: int, stride: int
) -> list[Window]:
    asked = [(token, layout.question) for token in question.ids[:longest]]
    first = [*layout.before, *asked, *layout.between]
    room = most - len(first) - len(layout.behind)
    ids, offsets, words = context.ids, context.offsets, context.word_ids
    windows = []
    # Windows that share more than half would be many; those that share all would never end.
    for start in range(0, max(1, len(ids)), room - min(stride, room // 2)):
        part = slice(start, start + room)
        tokens = [*first, *((token, layout.context) for token in ids[part]), *layout.behind]
        windows.append(
            Window(
                [token for token, _ in tokens], [kind for _, kind in tokens],
                len(first), offsets[part], words[part], len(question.ids) > longest,
            )
        )  # fmt: skip
        # Further windows would hold nothing that this one lacks.
        if start + room >= len(ids):
            break
    return windows


def best_span(logits: NDArray[np.float32], window: Window) -> tuple[float, int, int, float]:
    """Score, first and last token of a window's best answer, and the score of having none.

    The score is the product of two probabilities: of the first and of the last token among those of
    the context and the window's first token, which stands for no answer.

    Args:
        logits: [tokens, 2], of starting and of ending there.
    """
    count = len(window.offsets)
    context = slice(window.first, window.first + count)
    allowed = np.concatenate([logits[:1], logits[context]]).astype(np.float64)  # [1 + context, 2]
    # No exponential overflows then, and the probabilities are the same.
    allowed -= allowed.max(axis=0)
    chances = np.exp(allowed) / np.exp(allowed).sum(axis=0)
    none = float(chances[0].prod())
    # Below every product: it stays where a window has no tokens of the context.
    best, first, last = -1.0, 0, 0
    # All answers of one length at a time, so that Python does not loop over pairs of tokens.
    for length in range(min(MOST_ANSWER, count)):
        products = chances[1 : count + 1 - length, 0] * chances[1 + length :, 1]
        start = int(products.argmax())
        if products[start] > best:
            best, first, last = float(products[start]), start, start + length
    return best, window.first + first, window.first + last, none
