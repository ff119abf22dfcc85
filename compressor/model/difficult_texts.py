"""Texts that tell tokenizers apart: all kinds of white space and Unicode, and their own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any, TypeVar

from compressor.model.modes import quiet_transformers

Item = TypeVar("Item")

# Largest numbers of added and of other tokens in the texts, evenly spread.
MOST_ADDED, _WORDS = 48, 48
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


def difficult_texts(tokenizer: Any) -> list[str]:
    """Texts with all kinds of white space and Unicode, and with added and other tokens."""
    # A Marian tokenizer may have two vocabularies: tokens of both.
    size = min(len(tokenizer), len(getattr(tokenizer, "target_encoder", tokenizer)))
    tokens = tokenizer.convert_ids_to_tokens(evenly_spread(range(size), 8 * _WORDS))
    words = [str(x).strip("\u2581\u0120#").removesuffix("</w>") for x in tokens]
    words = evenly_spread([x for x in words if len(x) > 1 and x.isalnum()], _WORDS) or ["word"]
    added = [str(x) for _, x in sorted(tokenizer.added_tokens_decoder.items())]
    texts = [*_TEXTS, *(" ".join(words[i : i + 8]) for i in range(0, len(words), 8))]
    some = evenly_spread(added, MOST_ADDED)
    for token, a, b in zip(some, cycle(words), cycle(words[1:] or words), strict=False):
        # In full-width characters, which many tokenizers normalize.
        wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in token)
        texts += [
            f"{a} {token} {b}",
            f"{a}{token}{b} {token}{b} {a}{token}",
            f"  {token}  {token}{token}\t{token}\n{token}.{b}",
            f"{token}{b} {token.upper()} {token.lower()} {token[:-1]} {wide}",
        ]
    for some in (added[i : i + 64] for i in range(0, len(added), 64)):
        texts += [f" {words[0]} ".join(some), "".join(some)]
    return [text for text in texts if _is_readable(tokenizer, text)]


def evenly_spread(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many items, evenly spread."""
    count = min(len(items), most)
    return [items[i * len(items) // count] for i in range(count)]


def _is_readable(tokenizer: Any, text: str) -> bool:
    try:
        with quiet_transformers():
            tokenizer(text, verbose=False)
    except Exception:  # noqa: BLE001 # tokenizers without an unknown token raise plain Exception
        return False
    return True
