"""SentencePiece's text normalization: the longest rule that matches at each position.

A SentencePiece model contains its normalization rules (NFKC and a few more) as a precompiled
double-array trie over UTF-8 (Darts-clone, https://github.com/s-yata/darts-clone) followed by the
replacement strings, zero-terminated. The `tokenizers` library reads the same bytes, but works on
grapheme clusters and takes the *shortest* rule that matches: it drops the second accent of a
decomposed Vietnamese letter and does not compose decomposed kana or Hangul. SentencePiece takes
the longest rule at each position; so does this module.
"""

from __future__ import annotations

import struct


class SentencePieceNormalizer:
    """The rules of one SentencePiece model; call it with a text to normalize it.

    `rules` are `normalizer_spec.precompiled_charsmap` of the model.
    """

    def __init__(self, rules: bytes) -> None:
        (size,) = struct.unpack_from("<I", rules)
        self._units = struct.unpack_from(f"<{size // 4}I", rules, 4)
        self._strings = rules[4 + size :]
        self._steps: dict[tuple[int, str], int] = {}
        # ASCII characters that start no rule without a non-ASCII character after them.
        self._plain = frozenset(c for c in map(chr, range(128)) if self._longest(c, 0)[1] is None)

    def __call__(self, text: str) -> str:
        """`text` with the longest rule applied at each position, left to right."""
        if self._plain.issuperset(text):
            return text
        pieces = []
        start = 0
        while start < len(text):
            end, replacement = self._longest(text, start)
            pieces.append(text[start] if replacement is None else replacement)
            start = end
        return "".join(pieces)

    def _longest(self, text: str, start: int) -> tuple[int, str | None]:
        """End and replacement of the longest rule at `start`; (start + 1, None) without one."""
        node, position = 0, start
        end, leaf = start + 1, -1
        while position < len(text):
            node = self._child(node, text[position])
            if node < 0:
                break
            position += 1
            if self._units[node] >> 8 & 1:  # a rule ends here
                end, leaf = position, node
        return end, None if leaf < 0 else self._replacement(leaf)

    def _child(self, node: int, character: str) -> int:
        """The node after `character`, or -1; cached, because texts repeat characters."""
        key = (node, character)
        child = self._steps.get(key)
        if child is None:
            child = node
            for byte in character.encode():
                child ^= self._offset(child) ^ byte
                # Bit 31 of a label is set when the unit holds a value and is no transition.
                if child >= len(self._units) or self._units[child] & 0x800000FF != byte:
                    child = -1
                    break
            self._steps[key] = child
        return child

    def _offset(self, node: int) -> int:
        unit = self._units[node]
        # Bits 10 and up; with bit 9 set they count blocks of 256 units.
        return unit >> 10 << ((unit & 1 << 9) >> 6)

    def _replacement(self, node: int) -> str:
        # The unit of the value, where only bit 31 is not part of it.
        start = self._units[node ^ self._offset(node)] & 0x7FFFFFFF
        return self._strings[start : self._strings.index(0, start)].decode()
