"""Comparison of written tokenizers with the checkpoint's own, on difficult texts.

Written ones are the runtime's file, and the files beside the weights, opened by transformers again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import transformers

from compressor.errors import VerificationError
from compressor.model.checkpoint import Checkpoint
from compressor.model.difficult_texts import difficult_texts, evenly_spread
from compressor.model.languages import source_prefix
from compressor.model.modes import quiet_transformers
from compressor.model.stored_tokenizer import open_tokenizer
from compressor.model.tokenizer import prompts_of, reopened, target_ids
from compressor.runtime.batching import in_chunks
from compressor.runtime.text import Encoded, TextTokenizer

# Largest numbers of what is compared, evenly spread.
MOST_ROWS = 200
MOST_CUT = 200  # texts in pairs, and texts that are truncated
_DECODED = 1024  # tokens that are decoded
_CUT = 24  # tokens to truncate to; longer texts below have more
_SHOWN = 60  # characters of a text in a message
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
        """Take a checkpoint's tokenizer, with some of its rows."""
        tokenizer, writes = checkpoint.tokenizer, checkpoint.entry.decoder is not None
        difficult = difficult_texts(tokenizer)
        firsts = [*difficult, *evenly_spread(texts, MOST_ROWS)]
        seconds = [*difficult[7:], *difficult[:7], *evenly_spread(pairs or texts, MOST_ROWS)]
        types = "token_type_ids" in checkpoint.entry.inputs
        return cls(tokenizer, firsts, None if writes else seconds, types, writes)

    def check_file(self, path: Path) -> None:
        """Compare the runtime's tokenizer in a file."""
        written = TextTokenizer(path)
        some = evenly_spread(self.texts, MOST_CUT)
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
        for_targets = opened
        if opened is None:
            # The class that transformers opens may know no other language than that of sources.
            saved = open_tokenizer(directory, writes=self.writes)
            for_targets = reopened(self.tokenizer, saved)
            with quiet_transformers():
                plain = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
            opened = reopened(self.tokenizer, plain)
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
            both = self.tokenizer, for_targets
            wanted, got = (_encode(x, self.texts, target=True) for x in both)
            self._require_rows(self.texts, wanted, got, str(directory))

    def _require_same(self, encode: Encode, decode: Decode, where: str) -> None:
        prefix, tokenizer = source_prefix(self.tokenizer), self.tokenizer
        some = evenly_spread(range(len(self.texts)), MOST_CUT)
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


def _decode(tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[str]:
    with quiet_transformers():
        return list(tokenizer.batch_decode(rows, skip_special_tokens=True))


def _shown(text: str) -> str:
    """A text for messages: escaped, and shortened."""
    return ascii(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")
