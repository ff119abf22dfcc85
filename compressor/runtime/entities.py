"""Labels of tokens to labels of words, and labels of words to entities."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

Span = tuple[int, int]  # of characters, the last one not included

OUTSIDE = "O"
_PREFIXES = "BIES"  # begin, inside, end, single
_WORD = re.compile("[^ ]+")


@dataclass(frozen=True)
class Entity:
    """A part of a text with a label.

    Args:
        label: without its prefix, `location` for `B-location`.
        start, end: of its characters in the text, the last one not included.
        text: these characters.
        score: mean probability of its words' labels.
    """

    label: str
    start: int
    end: int
    text: str
    score: float


def word_spans(text: str) -> list[Span]:
    """Where the words of a text are that stand between spaces."""
    return [match.span() for match in _WORD.finditer(text)]


def spans_of(words: Sequence[str]) -> list[Span]:
    """Where words are in the text that they are with a space between each two."""
    ends = accumulate(len(word) + 1 for word in words)
    return [(end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)]


def first_tokens(offsets: Sequence[Span], words: Sequence[Span]) -> list[int | None]:
    """The number of the first token of each word; None where a word has none.

    Args:
        offsets: characters of each token, in order; special tokens have none (start = end).
        words: characters of each word, in order; one without any has no token.
    """
    found: list[int | None] = [None] * len(words)
    number = 0
    for token, (start, end) in enumerate(offsets):
        while number < len(words) and words[number][1] <= max(start, words[number][0]):
            number += 1
        if number == len(words):
            break
        if start < end and words[number][0] < end and found[number] is None:
            found[number] = token
    return found


def split_label(label: str) -> tuple[str, str]:
    """Prefix and type of a label; one without a prefix counts as inside.

    >>> split_label("B-location"), split_label("NOUN")
    (('B', 'location'), ('I', 'NOUN'))
    """
    prefix, dash, kind = label.partition("-")
    if prefix and prefix in _PREFIXES:
        return prefix, kind if dash else "_"
    return "I", label


def entity_runs(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Type, first and last word of each entity.

    An entity is a run of one type that is not broken by B or S, nor after E or S. It may start with
    I: that is the default mode of the package seqeval, and what the CoNLL-2003 script counts.
    """
    runs: list[tuple[str, int, int]] = []
    last_prefix, last_kind = "", OUTSIDE
    for number, label in enumerate(labels):
        if label == OUTSIDE:
            last_prefix, last_kind = "", OUTSIDE
            continue
        prefix, kind = split_label(label)
        goes_on = last_prefix and kind == last_kind and prefix not in "BS"
        if goes_on and last_prefix not in "ES":
            runs[-1] = (kind, runs[-1][1], number)
        else:
            runs.append((kind, number, number))
        last_prefix, last_kind = prefix, kind
    return runs


def entities(
    text: str, words: Sequence[Span], labels: Sequence[str], scores: Sequence[float]
) -> list[Entity]:
    """The entities of a text.

    Args:
        words: characters of each word.
        labels, scores: of each word; a score is the label's probability.
    """
    found = []
    for kind, first, last in entity_runs(labels):
        start, end = words[first][0], words[last][1]
        mean = sum(scores[first : last + 1]) / (last + 1 - first)
        found.append(Entity(kind, start, end, text[start:end], mean))
    return found
