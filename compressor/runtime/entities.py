"""Labels of tokens to labels of words, and labels of words to entities."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Span = tuple[int, int]  # of characters, the last one not included
Scheme = Mapping[str, tuple[str, str]]  # label -> prefix and type; none of `O`

OUTSIDE = "O"
_STANDARD = "BIES"  # begin, inside, end, single
# Last and unit of BILOU, middle and whole of BMEWO.
_LETTERS = dict(zip("BIESLUMW", "BIESESIS", strict=True))
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
    """The characters of each word of a text; words are what spaces separate."""
    return [match.span() for match in _WORD.finditer(text)]


def first_tokens(offsets: Sequence[Span], words: Sequence[Span]) -> list[int | None]:
    """The number of the first token of each word; None where a word has none.

    Args:
        offsets: characters of each token, in order; special tokens have none (start = end).
        words: characters of each word, in order.
    """
    first: list[int | None] = [None] * len(words)
    number = 0
    for token, (start, end) in enumerate(offsets):
        # Words that end before the token begins, and words without characters, have no more tokens.
        while number < len(words) and words[number][1] <= max(start, words[number][0]):
            number += 1
        if number == len(words):
            break
        if start < end and words[number][0] < end and first[number] is None:
            first[number] = token
    return first


def scheme_of(labels: Sequence[str]) -> Scheme:
    """Prefix (B, I, E or S) and type of each label of a model but `O`, as written `B-location`.

    So are IOB1, IOB2, IOE1, IOE2 and IOBES (BMES but for its M) written. BILOU and BMEWO have other
    letters for the same: L and U, M and W. A label without a prefix counts as inside, which makes
    an entity of words that follow each other with the same label. Where every label is such a
    letter alone, all entities are of the type `_`.

    >>> scheme_of(["O", "B-location", "U-location"])
    {'B-location': ('B', 'location'), 'U-location': ('S', 'location')}
    >>> scheme_of(["U-turn", "NOUN"])
    {'U-turn': ('I', 'U-turn'), 'NOUN': ('I', 'NOUN')}
    """
    named = [label for label in labels if label != OUTSIDE]
    bare = all(label in _LETTERS for label in named)
    begins = any(label.startswith("B-") for label in named)
    scheme = {}
    for label in named:
        letter, dash, kind = label.partition("-")
        known = letter in _LETTERS and bool(bare or (dash and (begins or letter in _STANDARD)))
        scheme[label] = (_LETTERS[letter], kind or "_") if known else ("I", label)
    return scheme


def entity_runs(labels: Sequence[str], scheme: Scheme) -> list[tuple[str, int, int]]:
    """Type, first and last word of each entity.

    An entity is a run of one type that is not broken by B or S, nor after E or S. It may start with
    I or E, as the CoNLL-2003 script counts.

    Args:
        labels: of the words of a text.
        scheme: by `scheme_of`.
    """
    runs: list[tuple[str, int, int]] = []
    last_prefix, last_kind = "", OUTSIDE
    for number, label in enumerate(labels):
        prefix, kind = scheme.get(label, ("", OUTSIDE))
        goes_on = last_prefix and kind == last_kind and prefix not in "BS"
        if goes_on and last_prefix not in "ES":
            runs[-1] = (kind, runs[-1][1], number)
        elif prefix:
            runs.append((kind, number, number))
        last_prefix, last_kind = prefix, kind
    return runs
