"""Comparison of written tokenizers with the checkpoint's own, on difficult texts.

Written ones are the runtime's file, and the files beside the weights, opened by transformers again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from compressor.errors import VerificationError
from compressor.model.checkpoint import Checkpoint
from compressor.model.languages import source_prefix
from compressor.model.modes import quiet_transformers
from compressor.model.tokenizer import prompts_of, reopened, target_ids
from compressor.runtime.batching import Item, in_chunks
from compressor.runtime.text import Encoded, TextTokenizer

# Largest numbers of rows, of texts in pairs and truncated, of added tokens …, evenly spread.
MOST_ROWS, MOST_CUT, MOST_ADDED, _WORDS, _DECODED = 200, 200, 48, 48, 1024
_CUT = 24  # tokens to truncate to; longer texts below have more
_SHOWN = 60  # characters of a text in a message
_TEXTS = (
    "",
    " ",
    "\t\r\n ",
    "The kettle is still warm.",
    "At 7:45, 3.5 litres cost 1,000 euros - or do they? ( x ) . , ! ?",
    "don't I'm it's n't we've \u201cquoted\u201d \u2018single\u2019 \u2026 \u2013 \u2014 ` \u00b4",
    "  two  spaces,\ta tab\nand a line\r\nend   ",
    "no\u00a0break wide\u3000thin\u2009zero\u200bjoin\u200cer\u200dword\u2060mark\ufeff",
    "UPPER lower MiXeD \u00c4\u00d6\u00dc \u00e4\u00f6\u00fc \u00df\u1e9e \u0130i \u0131I",
    "e\u0301 \u00e9 a\u0323\u0302 \u1ead \u1112\u1161\u11ab \ud55c \u0301first so\u00adft",
    "\ufb01\u0301 \ufb03 \u00bd \u2163 \u2122 \u338f \u2460 \u00b2\u00b3 \u0663\u0664",
    "\uff26\uff35\uff2c\uff2c\u3000\uff57\uff49\uff44\uff54\uff48 \uff76\uff9e\uff77\uff9e",
    "\U0001f642 \U0001f469\u200d\U0001f469\u200d\U0001f467 \u263a\ufe0f 1\ufe0f\u20e3",
    "\U0001f1e9\U0001f1ea \U0001d518\U00010348 \u304b\u3099 \u0391\u03a3\u03c2 \u03b1\u0345",
    "nul\x00 \x01\x07\x1b\x7f\x85 \x1cfile\x1f \u2028line\u2029 \ufffd",
    "\u0627\u0644\u0651\u064e\u0639 \u202bright\u202c \u05e2\u05b4\u05d1\u05e8 \u200eleft\u200f",
    "\ue000private\U000f0000 \ufdd0\ufdd1\ufdd2\ufffe none\U0010ffff",
    "\u65e5\u672c\u8a9e\u306e\u6587\u3002\u6f22\u5b57 \u4e2d\u6587\uff0c\u6ca1\u6709 abc\u5b57def",
    "\u0e44\u0e17\u0e22\u0e44\u0e21\u0e48 \u0939\u093f\u0928\u094d\u0926\u0940 \u043c\u0438\u0440",
    "http://a.b/c?d=e&f=g#h user@example.org #tag @name <b>html</b> &amp; {x} [y] \\z |",
    "\u2581 lower \u2581block \u2581\u2581end\u2581 ##piece \u0120word </w> >>de<< the",
    "a" * 120,
    "!?.,;:" * 12,
    "word " * 60,
)  # fmt: skip

# (texts, second texts, largest number of tokens of a row) -> rows; rows of tokens -> texts
Encode = Callable[[list[str], list[str] | None, int | None], list[Encoded]]
Decode = Callable[[list[list[int]]], list[str]]
_ADVICE = "please report this with the checkpoint's name"


@dataclass(frozen=True)
class TokenizerProbe:
    """A checkpoint's tokenizer, and texts to compare others with it; VerificationError."""

    tokenizer: Any
    texts: Sequence[str]  # without the checkpoint's prefix
    pairs: Sequence[str] | None = None  # second texts, for models that read pairs
    types: bool = False  # the model reads token types
    writes: bool = True  # the model generates text

    @classmethod
    def of(
        cls, checkpoint: Checkpoint, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> TokenizerProbe:
        """For a checkpoint, with some of its rows."""
        tokenizer, writes = checkpoint.tokenizer, checkpoint.entry.decoder is not None
        difficult = difficult_texts(tokenizer)
        firsts = [*difficult, *_some(texts, MOST_ROWS)]
        seconds = [*difficult[7:], *difficult[:7], *_some(pairs or texts, MOST_ROWS)]
        types = "token_type_ids" in checkpoint.entry.inputs
        return cls(tokenizer, firsts, None if writes else seconds, types, writes)

    def check_file(self, path: Path) -> None:
        """Compare the runtime's tokenizer in a file."""
        written = TextTokenizer(path)
        some = _some(self.texts, MOST_CUT)
        for prompt in prompts_of(self.tokenizer):
            written.prefix = prompt
            wanted = _encode(self.tokenizer, [prompt + text for text in some])
            self._require_rows(some, wanted, written.encode(some), str(path))
        written.prefix = source_prefix(self.tokenizer)

        def encode(texts: list[str], pairs: list[str] | None, most: int | None) -> list[Encoded]:
            if most is not None:
                written.cut_to(most, self.tokenizer.truncation_side)
            return written.encode(texts, pairs)

        self._require_same(encode, written.decode, str(path))

    def check_saved(self, directory: Path, opened: Any = None) -> None:
        """Compare the tokenizer, and its settings, that transformers opens in a directory."""
        if opened is None:
            with quiet_transformers():
                opened = reopened(self.tokenizer, directory)
        for name in ("pad_token_id", "eos_token_id", "model_max_length", "truncation_side"):
            want, got = getattr(self.tokenizer, name), getattr(opened, name)
            if want != got:
                raise VerificationError(
                    f"the tokenizer in {directory} loads with {name}={got}, and was saved with "
                    f"{want}; {_ADVICE}",
                    id="saved-tokenizer-differs",
                )
        prefix = source_prefix(self.tokenizer)

        def encode(texts: list[str], pairs: list[str] | None, most: int | None) -> list[Encoded]:
            return _encode(opened, [prefix + text for text in texts], pairs, most)

        self._require_same(encode, partial(_decode, opened), str(directory))
        if self.writes:  # targets may begin with another language token than sources
            wanted, got = (_encode(x, self.texts, target=True) for x in (self.tokenizer, opened))
            self._require_rows(self.texts, wanted, got, str(directory))

    def _require_same(self, encode: Encode, decode: Decode, where: str) -> None:
        prefix, tokenizer = source_prefix(self.tokenizer), self.tokenizer
        some = _some(range(len(self.texts)), MOST_CUT)
        texts = [self.texts[i] for i in some]
        pairs: list[list[str] | None] = [None]
        pairs += [] if self.pairs is None else [[self.pairs[i] for i in some]]
        rows: list[list[int]] = []
        # Truncated ones are last, since the runtime's tokenizer truncates from then on.
        forms = [(texts, seconds, most) for most in (None, _CUT) for seconds in pairs]
        for chosen, seconds, most in [([*self.texts], None, None), *forms]:
            wanted = _encode(tokenizer, [prefix + x for x in chosen], seconds, most)
            self._require_rows(chosen, wanted, encode(chosen, seconds, most), where)
            rows = rows or [list(row) for row in wanted]
        if not self.writes:
            return
        if getattr(tokenizer, "separate_vocabs", False):  # only ids of targets are decoded
            rows = [list(row) for row in _encode(tokenizer, self.texts, target=True)]
        ids = sorted(set(target_ids(tokenizer).values()))
        tokens = [ids[i * len(ids) // _DECODED] for i in range(_DECODED)]
        tokens += sorted(tokenizer.added_tokens_decoder)[:_DECODED]
        random.Random(0).shuffle(tokens)
        rows += [list(row) for row in in_chunks(tokens, 8)]
        for row, want, got in zip(rows, _decode(tokenizer, rows), decode(rows), strict=True):
            if want != got:
                raise VerificationError(
                    f"{where} decodes the tokens {row[:8]}{' …' if row[8:] else ''} to "
                    f"{_shown(got)}, and {type(tokenizer).__name__} to {_shown(want)}; {_ADVICE}",
                    id="tokenizer-decodes-differently",
                )

    def _require_rows(
        self, texts: Sequence[str], wanted: Sequence[Encoded], actual: Sequence[Encoded], where: str
    ) -> None:
        for text, want, got in zip(texts, wanted, actual, strict=True):
            if list(want) != list(got):
                first = next(i for i in range(len(got) + 1) if got[: i + 1] != want[: i + 1])
                how = f"has {got[first:][:5]} at token {first}, where that has {want[first:][:5]}"
            elif self.types and want.type_ids != got.type_ids:
                how = f"gives other token types, {got.type_ids[-1]} at the end"
            else:
                continue
            raise VerificationError(
                f"{where} does not encode {_shown(text)} as "
                f"{type(self.tokenizer).__name__}: it {how}; {_ADVICE}",
                id="tokenizer-encodes-differently",
            )


def difficult_texts(tokenizer: Any) -> list[str]:
    """Texts with all kinds of white space and Unicode, and with added and other tokens."""
    # With two vocabularies, those of the target's.
    size = min(len(tokenizer), len(target_ids(tokenizer)))
    tokens = tokenizer.convert_ids_to_tokens(_some(range(size), 8 * _WORDS))
    words = [str(x).strip("\u2581\u0120#").removesuffix("</w>") for x in tokens]
    words = _some([x for x in words if len(x) > 1 and x.isalnum()], _WORDS) or ["word"]
    added = [str(x) for _, x in sorted(tokenizer.added_tokens_decoder.items())]
    texts = [*_TEXTS, *map(" ".join, in_chunks(words, 8))]
    for token, a, b in zip(_some(added, MOST_ADDED), cycle(words), cycle(words[1:] or words)):
        # In full-width characters, which many tokenizers normalize.
        wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in token)
        texts += [
            f"{a} {token} {b}",
            f"{a}{token}{b} {token}{b} {a}{token}",
            f"  {token}  {token}{token}\t{token}\n{token}.{b}",
            f"{token}{b} {token.upper()} {token.lower()} {token[:-1]} {wide}",
        ]
    for some in in_chunks(added, 64):
        texts += [f" {words[0]} ".join(some), "".join(some)]
    return [text for text in texts if _is_readable(tokenizer, text)]


def _some(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many items, evenly spread."""
    count = min(len(items), most)
    return [items[i * len(items) // count] for i in range(count)]


def _encode(
    tokenizer: Any,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    most: int | None = None,
    target: bool = False,
) -> list[Encoded]:
    cut = {} if most is None else {"truncation": True, "max_length": most}
    second = None if pairs is None else list(pairs)
    columns = {"text_target": list(texts)} if target else {"text": list(texts), "text_pair": second}
    with quiet_transformers():
        encoded = tokenizer(**columns, verbose=False, **cut)
    # Without token types from the tokenizer, the model uses 0.
    types = encoded.get("token_type_ids") or [None] * len(texts)
    return [Encoded(*row) for row in zip(encoded["input_ids"], types, strict=True)]


def _is_readable(tokenizer: Any, text: str) -> bool:
    try:
        _encode(tokenizer, [text])
    except Exception:  # noqa: BLE001 # tokenizers without an unknown token raise plain Exception
        return False
    return True


def _decode(tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[str]:
    with quiet_transformers():
        return list(tokenizer.batch_decode(rows, skip_special_tokens=True))


def _shown(text: str) -> str:
    """A text for messages: escaped, and shortened."""
    return ascii(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")
