"""How an artifact's decoder searches, as `graphs.json` says it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from compressor.errors import UsageError
from compressor.runtime.batching import check_limits
from compressor.runtime.fields import (
    MOST,
    checked,
    either,
    finite,
    list_of,
    one_of,
    optional,
    token_id,
    whole,
)

MOST_BEAMS = 1024

_COUNT = whole(0, MOST)
_SIZE = whole(1, MOST)
_FLAG = one_of(True, False)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How to decode; names and meanings are those of transformers' `GenerationConfig`.

    Lengths include the start token, except `max_new_tokens`, which takes precedence over
    `max_length`, and `positions`: the most tokens that the decoder can generate (None: not known).
    """

    decoder_start_token_id: int = checked(token_id)
    eos_token_id: list[int] = checked(list_of(token_id))
    # At least the start token and one more.
    max_length: int | None = checked(optional(whole(2, MOST)), None)
    max_new_tokens: int | None = checked(optional(_SIZE), None)
    positions: int | None = checked(optional(_SIZE), None)
    min_length: int = checked(_COUNT, 0)
    num_beams: int = checked(whole(1, MOST_BEAMS), 1)
    length_penalty: float = checked(finite, 1.0)
    early_stopping: bool | Literal["never"] = checked(one_of(True, False, "never"), False)
    forced_bos_token_id: int | None = checked(optional(token_id), None)
    forced_eos_token_id: int | list[int] | None = checked(
        optional(either(list_of(token_id), token_id)), None
    )
    suppress_tokens: list[int] = checked(list_of(token_id), [])
    no_repeat_ngram_size: int = checked(_COUNT, 0)
    renormalize_logits: bool = checked(_FLAG, False)

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
        given: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": max_new_tokens}
        check_limits(**given)
        if max_new_tokens is not None and max_new_tokens > (self.positions or max_new_tokens):
            raise UsageError(
                f"{max_new_tokens} tokens are more than the {self.positions} that the model can "
                "generate; ask for fewer",
                id="length-beyond-positions",
            )
        return replace(self, **{k: v for k, v in given.items() if v is not None})

    def with_length(self, tokens: int) -> Generation:
        """A greedy copy that generates exactly `tokens` tokens, whatever they are.

        Raises:
            UsageError: as `with_options`.
        """
        fixed = self.with_options(1, tokens)
        return replace(fixed, eos_token_id=[], forced_eos_token_id=None, min_length=0)
