"""Scripts and words of texts in any language."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable

HAN = "Han"
KANA = "kana"
HANGUL = "Hangul"
LATIN = "Latin"
# First words of Unicode's character names, which begin with the script.
_NAMED = {
    "CJK": HAN,
    "IDEOGRAPHIC": HAN,
    "HIRAGANA": KANA,
    "KATAKANA": KANA,
    "KATAKANA-HIRAGANA": KANA,
    "HANGUL": HANGUL,
    "MYANMAR": "Burmese",
    "TAI": "Tai Tham",
}
_WIDTHS = ("HALFWIDTH", "FULLWIDTH")
UNSPACED = frozenset(
    (HAN, KANA, "Thai", "Lao", "Khmer", "Burmese", "Tibetan", "Javanese", "Balinese", "Tai Tham")
)
ENOUGH = 0.1  # least share of the letters for a script to count


def script_of(character: str) -> str:
    """The script of a letter, such as `Thai`; for other characters any word."""
    words = unicodedata.name(character, "?").split()
    first = words[1] if words[0] in _WIDTHS else words[0]
    return _NAMED.get(first, first.capitalize())


def shares(texts: Iterable[str]) -> dict[str, float]:
    """The scripts of some texts.

    Returns:
        Script -> its share of the letters, if that is at least `ENOUGH`, largest first.
    """
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    letters: Counter[str] = Counter()
    for character, count in characters.items():
        if unicodedata.category(character).startswith("L"):
            letters[script_of(character)] += count
    total = letters.total()
    return {name: n / total for name, n in letters.most_common() if n >= ENOUGH * total}


def words(text: str) -> list[str]:
    """Words of a text of any script, in lower case: runs of letters, marks and digits.

    In a script without spaces each character is a word, with its combining marks.
    """
    split: list[str] = []
    inside = False  # a word that the next letter continues
    for character in text.lower():
        kind = unicodedata.category(character)[0]
        if kind not in "LMN":
            inside = False
            continue
        alone = kind == "L" and script_of(character) in UNSPACED
        if split and (kind == "M" or (inside and not alone)):
            split[-1] += character
        else:
            split.append(character)
        inside = not alone
    return split
