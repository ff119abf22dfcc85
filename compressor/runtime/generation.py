"""How an artifact's decoder searches, and between which languages, as `graphs.json` says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from compressor.errors import UsageError, did_you_mean
from compressor.runtime.batching import check_limits
from compressor.runtime.fields import MOST, NOT_EMPTY, Count, Size, TokenId

MOST_BEAMS = 1024


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How to decode; names and meanings are those of transformers' `GenerationConfig`.

    Lengths include the start token, except `max_new_tokens`, which takes precedence over
    `max_length`, and `positions`: the most tokens that the decoder can generate (None: not known).
    """

    decoder_start_token_id: TokenId
    eos_token_id: list[TokenId]
    # At least the start token and one more.
    max_length: Annotated[int, range(2, MOST + 1)] | None = None
    max_new_tokens: Size | None = None
    positions: Size | None = None
    min_length: Count = 0
    num_beams: Annotated[int, range(1, MOST_BEAMS + 1)] = 1
    length_penalty: float = 1.0
    early_stopping: Literal[True, False, "never"] = False
    forced_bos_token_id: TokenId | None = None
    forced_eos_token_id: list[TokenId] | TokenId | None = None
    suppress_tokens: list[TokenId] = field(default_factory=list)
    no_repeat_ngram_size: Count = 0
    renormalize_logits: bool = False

    def __post_init__(self) -> None:
        if self.max_length is None and self.max_new_tokens is None:
            raise ValueError("either max_length or max_new_tokens must be set")

    @property
    def limit(self) -> int:
        """The most tokens to generate, the start token not counted."""
        limit = self.max_new_tokens
        if limit is None:
            assert self.max_length is not None  # checked on reading
            limit = self.max_length - 1
        return limit if self.positions is None else min(limit, self.positions)

    def with_options(self, num_beams: int | None, max_new_tokens: int | None) -> Generation:
        """A copy with what is not None replaced.

        Raises:
            UsageError: a number below 1, or more tokens than the decoder has positions for.
        """
        options: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": max_new_tokens}
        check_limits(**options)
        if max_new_tokens is not None and max_new_tokens > (self.positions or max_new_tokens):
            raise UsageError(
                f"{max_new_tokens} tokens are more than the {self.positions} that the model can "
                "generate; ask for fewer",
                id="length-beyond-positions",
            )
        return replace(self, **{k: v for k, v in options.items() if v is not None})

    def with_length(self, tokens: int) -> Generation:
        """A greedy copy that generates exactly `tokens` tokens; errors as `with_options`."""
        fixed = self.with_options(1, tokens)
        return replace(fixed, eos_token_id=[], forced_eos_token_id=None, min_length=0)


@dataclass(frozen=True, kw_only=True)
class Languages:
    """The languages of a multilingual translator.

    Args:
        codes: code of each language -> its token.
        source: what it translates from; every source holds its token.
        target: what it translates into.
        starts: decoders start with the target's token; else it is forced to be the first.
    """

    codes: Annotated[Mapping[str, TokenId], NOT_EMPTY]
    source: str
    target: str | None = None
    starts: bool = False

    def __post_init__(self) -> None:
        for code in (self.source, self.target):
            if code is not None and code not in self.codes:
                raise ValueError(f"language {code!r:.40} is none of its languages")

    def token(self, option: str, code: str) -> int:
        """The token of a language; UsageError for one that the model does not have.

        Args:
            option: that names the language, for messages.
        """
        if code not in self.codes:
            known = sorted(self.codes)
            raise UsageError(
                f"{option} {code}: the model has no such language{did_you_mean(code, known)}; it "
                f"has {', '.join(known[:12])}{', …' if len(known) > 12 else ''}",
                id="language-unknown",
            )
        return self.codes[code]
