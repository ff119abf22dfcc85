"""Which scripts texts are written in, and which of them put no spaces between words."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable

HAN, KANA, HANGUL, LATIN = "Han", "kana", "Hangul", "Latin"
# First words of Unicode's names of characters, of which each begins with its script.
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
ENOUGH = 0.1  # share of the letters from which on a script counts


def script_of(character: str) -> str:
    """The script of a letter, `Thai`; of other characters any word."""
    words = unicodedata.name(character, "?").split()
    first = words[1] if words[0] in _WIDTHS else words[0]
    return _NAMED.get(first, first.capitalize())


def shares(texts: Iterable[str]) -> dict[str, float]:
    """Script -> its share of the letters of some texts, where that is `ENOUGH`."""
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

    Of a script without spaces each character is a word, with the marks that belong to it.

    >>> words("Она́ 日本 ไม่")
    ['она́', '日', '本', 'ไ', 'ม่']
    """
    found: list[str] = []
    goes_on = False
    for character in text.lower():
        kind = unicodedata.category(character)[0]
        if kind not in "LMN":
            goes_on = False
            continue
        alone = kind == "L" and script_of(character) in UNSPACED
        if found and (kind == "M" or (goes_on and not alone)):
            found[-1] += character
        else:
            found.append(character)
        goes_on = not alone
    return found
