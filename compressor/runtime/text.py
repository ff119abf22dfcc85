"""Texts to token ids and back, from the `tokenizer.json` of an artifact.

The library `tokenizers` cannot express two things of SentencePiece (see
`compressor.export.tokenizer`): its normalization, and that pieces without an id become unknown.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import CompressWarning, InputError
from compressor.runtime.batching import require_texts
from compressor.runtime.opening import unusable
from compressor.storage.input_files import MIB, panics_raised, read_text

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

# A noncharacter: it occurs in no text, so a vocabulary entry that starts with it never matches.
MARK = "\ufdd0"
UNKNOWN_CHARACTER = "\ufdd1"  # another one: in no vocabulary
NO_TOKEN = "\ufdd2"  # stands inside of what looks like an added token after normalizing
# The entry after the model's last id; after it come the pieces without an id.
FIRST_WITHOUT_ID = f"{MARK}pieces without an id"


class Encoded(list[int]):
    """The token ids of one row.

    Args:
        ids: of all its tokens.
        type_ids: the type of each; None: all 0.
        cut: whether the row was longer than the model can read.
    """

    def __init__(
        self, ids: Iterable[int], type_ids: Iterable[int] | None = None, cut: bool = False
    ) -> None:
        super().__init__(ids)
        self.type_ids = [0] * len(self) if type_ids is None else list(type_ids)
        self.cut = cut


class TextsCut(CompressWarning):
    """Some texts were too long for the model.

    Args:
        cut: how many.
        texts: of how many; None where that is not known.
        what: the rest of the sentence: what they are, and what happened to them.
    """

    def __init__(self, cut: int, texts: int | None, what: str) -> None:
        super().__init__(f"{cut} of {'the' if texts is None else texts} {what}")
        self.cut, self.what = cut, what


@contextmanager
def one_warning_of_cut() -> Iterator[None]:
    """Warn once, at the end, where several calls each warn of the texts that they cut."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TextsCut)
        yield
    cuts = [x.message for x in caught if isinstance(x.message, TextsCut)]
    # Recording has kept all other warnings from being shown, too.
    for other in caught:
        if not isinstance(other.message, TextsCut):
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    if cuts:
        cut = sum(warning.cut for warning in cuts)
        warnings.warn(TextsCut(cut, None, cuts[0].what), stacklevel=3)


class TextTokenizer:
    """A `tokenizer.json`: encodes with the special tokens, decodes without them.

    Texts begin with `prefix`.

    Args:
        path: the file.
        max_tokens: rows are cut to this many tokens, special tokens kept; None never cuts.
        side: the end at which tokens are left out, `right` or `left`.

    Raises:
        InputError: no such file, or not a tokenizer.
    """

    def __init__(self, path: Path, max_tokens: int | None = None, side: str = "right") -> None:
        from tokenizers import Tokenizer

        self._path, self.prefix = path, ""
        self.token_types: int | None = None  # that the model knows; None: any
        try:
            with panics_raised():
                # The largest tokenizers have some 20 MiB.
                self.library = Tokenizer.from_str(read_text(path, 512 * MIB))
                self._normalizer = _take_normalizer(self.library)
        except Exception as error:  # the library raises nothing more specific
            raise unusable(path, error) from error
        if self._normalizer is not None:
            added = [x.content for x in self.library.get_added_tokens_decoder().values()]
            longest_first = sorted(map(re.escape, added), key=len, reverse=True)
            self._added = re.compile(f"({'|'.join(longest_first) or '(?!)'})")
        if max_tokens is not None:
            self.cut_to(max_tokens, side)
        self._first_without_id = self.library.token_to_id(FIRST_WITHOUT_ID)
        if self._first_without_id is not None:
            # No entry is `MARK` alone, so it becomes the unknown token.
            self._unknown = self.library.model.tokenize(MARK)[0].id
        self._language: tuple[int, int] | None = None  # its place in a row, and its token

    def cut_to(self, max_tokens: int, side: str) -> None:
        """Cut rows to this many tokens from now on."""
        self.library.enable_truncation(max_tokens, direction=side)

    def with_language(self, old: int, new: int) -> TextTokenizer:
        """A copy whose rows have the token `new` where this one's have the language token `old`."""
        # An empty text has the special tokens alone.
        ids = self.library.encode("").ids
        other = copy(self)
        # Counted from the end that it stands at.
        other._language = (0 if ids[0] == old else ids.index(old) - len(ids)), new
        return other

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoded]:
        """Encode texts, or pairs of texts, with the special tokens.

        Args:
            texts: the texts, or the first one of each pair.
            pairs: the second one of each.

        Returns:
            A row for each text or pair, whose `cut` says whether it had to be cut.

        Raises:
            UsageError: not as many pairs as texts, or one text in place of a list.
            InputError: the tokenizer gives a pair a token type that the model does not know.
        """
        return self.rows(self.encodings(texts, pairs))

    def encodings(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoding]:
        """Encode into the library's own objects, which have the characters of each token.

        Arguments and errors are those of `encode`.
        """
        require_texts(texts, pairs)
        rows: list[Any] = self._normalized(texts)
        if pairs is not None:
            rows = list(zip(rows, self._normalized(pairs), strict=True))
        return list(self.library.encode_batch(rows))

    def encodings_of_words(self, sentences: Sequence[Sequence[str]]) -> list[Encoding]:
        """Encode sentences that are split into words, of which each is read by itself.

        transformers' tokenizers do so with `is_split_into_words=True`.

        Args:
            sentences: the words of each.

        Returns:
            Encodings whose `word_ids` are the numbers of the words.
        """
        words = [list(sentence) for sentence in sentences]
        return list(self.library.encode_batch(words, is_pretokenized=True))

    def rows(self, encodings: Iterable[Encoding]) -> list[Encoded]:
        """Take the token ids out of encodings; pieces without an id become the unknown token.

        Raises:
            InputError: a token has a type that the model does not know.
        """
        rows, limit = [], self._first_without_id
        for encoding in encodings:
            ids = encoding.ids
            # Most rows have no piece without an id, and are not copied.
            if limit is not None and max(ids, default=0) >= limit:
                ids = [self._unknown if token >= limit else token for token in ids]
            types = encoding.type_ids
            if self.token_types is not None and max(types, default=0) >= self.token_types:
                # Of single texts this was checked when the checkpoint was opened.
                raise InputError(
                    f"{self._path} gives a pair of texts the token type {max(types)}, and the "
                    f"model has {self.token_types} (token_types in graphs.json), from 0 on; give "
                    "single texts",
                    id="token-type-unknown",
                )
            row = Encoded(ids, types, bool(encoding.overflowing))
            if self._language is not None:
                index, token = self._language
                row[index] = token
            rows.append(row)
        return rows

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """The text of each row of ids, special tokens left out."""
        return list(self.library.decode_batch([list(row) for row in rows]))

    def _normalized(self, texts: Sequence[str]) -> list[str]:
        """Texts by SentencePiece's rules, but for added tokens, which are matched before."""
        # The prefix is text as the user's is: it is normalized and cut into tokens with it.
        whole = [f"{self.prefix}{text}" for text in texts] if self.prefix else list(texts)
        if self._normalizer is None:
            return whole
        normalized = []
        for text in whole:
            # The text around added tokens is at the even places.
            parts = self._added.split(text.replace(NO_TOKEN, UNKNOWN_CHARACTER))
            for i in range(0, len(parts), 2):
                plain = self._normalizer(parts[i])
                parts[i] = self._added.sub(lambda x: f"{x[0][0]}{NO_TOKEN}{x[0][1:]}", plain)
            normalized.append("".join(parts))
        return normalized


def _take_normalizer(tokenizer: Tokenizer) -> SentencePieceNormalizer | None:
    """Take SentencePiece's rules out of the tokenizer, which would apply them inexactly.

    Only where SentencePiece itself reads the checkpoint's texts: others are as inexact.
    """
    if tokenizer.normalizer is None:
        return None
    # The library shows and takes the parts of a normalizer only as pickles do, which is JSON.
    state = json.loads(tokenizer.normalizer.__getstate__())
    removes = {"type": "Replace", "pattern": {"String": NO_TOKEN}, "content": ""}
    # Files of earlier versions, for Marian.
    is_older = tokenizer.token_to_id(FIRST_WITHOUT_ID) is not None
    if not is_older and removes not in state.get("normalizers", ()):
        return None
    steps = [step for step in state["normalizers"] if step["type"] == "Precompiled"]
    state["normalizers"] = [step for step in state["normalizers"] if step not in steps]
    normalizer = tokenizer.normalizer
    normalizer.__setstate__(json.dumps(state).encode())
    tokenizer.normalizer = normalizer
    if not steps:
        return None
    return SentencePieceNormalizer(base64.b64decode(steps[0]["precompiled_charsmap"]))


class SentencePieceNormalizer:
    """SentencePiece's text normalization, which applies the longest rule at each position.

    Its rules are a double-array trie over UTF-8 (Darts-clone,
    https://github.com/s-yata/darts-clone), followed by the replacement strings, zero-terminated.
    The library takes the *shortest* rule that matches within a grapheme cluster: it drops the
    second accent of a decomposed Vietnamese letter and does not compose decomposed kana or Hangul.

    Args:
        rules: `normalizer_spec.precompiled_charsmap` of the SentencePiece model.
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
        pieces, start = [], 0
        while start < len(text):
            end, replacement = self._longest(text, start)
            pieces.append(text[start] if replacement is None else replacement)
            start = end
        return "".join(pieces)

    def _longest(self, text: str, start: int) -> tuple[int, str | None]:
        """End and replacement of the longest rule at `start`; (start + 1, None) without one."""
        node, leaf = 0, -1
        position, end = start, start + 1
        while position < len(text):
            node = self._child(node, text[position])
            if node < 0:
                break
            position += 1
            if self._units[node] >> 8 & 1:  # a rule ends here
                end, leaf = position, node
        if leaf < 0:
            return end, None
        # The unit of the value, where only bit 31 is not part of it.
        begin = self._units[leaf ^ self._offset(leaf)] & 0x7FFFFFFF
        return end, self._strings[begin : self._strings.index(0, begin)].decode()

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
