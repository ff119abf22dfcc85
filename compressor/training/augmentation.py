"""Altered copies of texts, for the dense model to answer: more text of nearly the same kind.

Words are left out or replaced at random, as in EDA (Wei & Zou 2019, "Easy data augmentation
techniques for boosting performance on text classification tasks"). The copies need no labels: the
dense model answers each as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

DROPPED = REPLACED = 0.08  # shares of the words


def altered(text: str, words: Sequence[str], random: Random) -> str:
    """A copy of a text with some words left out and some replaced, at least one of them.

    Args:
        text: words that are separated by white space; of a single one, or without any, the copy is
            the text.
        words: that replace others; each is as probable as it is frequent among them.
        random: decides.
    """
    before = text.split()
    if len(before) < 2:
        return text
    after = []
    for word in before:
        chance = random.random()
        if chance < DROPPED:
            continue
        after.append(random.choice(words) if chance < DROPPED + REPLACED else word)
    if not after or after == before:
        place = random.randrange(len(before))
        others = [word for word in words if word != before[place]]
        after = [*before[:place], *random.choices(others, k=bool(others)), *before[place + 1 :]]
    return " ".join(after)
