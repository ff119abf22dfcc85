"""How a decoder generates: settings, languages, and the tokens that it scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError, UsageError, did_you_mean
from compressor.runtime.batching import check_limits

Tokens = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How to decode; names and meanings are those of transformers' `GenerationConfig`.

    Lengths include the start token, but for `max_new_tokens`, which takes precedence over
    `max_length`, and `positions`.

    Args:
        positions: the most tokens that the decoder can generate; None: not known.
        bad_words_ids: sequences of one token each.
    """

    decoder_start_token_id: int
    eos_token_id: list[int]
    max_length: int | None = None
    max_new_tokens: int | None = None
    positions: int | None = None
    min_length: int = 0
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: Literal[True, False, "never"] = False
    forced_bos_token_id: int | None = None
    forced_eos_token_id: list[int] | int | None = None
    bad_words_ids: list[list[int]] = field(default_factory=list)
    suppress_tokens: list[int] = field(default_factory=list)
    no_repeat_ngram_size: int = 0
    renormalize_logits: bool = False

    @property
    def limit(self) -> int:
        """The most tokens to generate, the start token not counted."""
        limit = self.max_new_tokens
        if limit is None:
            limit = (self.max_length or 0) - 1  # one of the two is written
        return limit if self.positions is None else min(limit, self.positions)

    @property
    def banned(self) -> list[int]:
        """The tokens of `bad_words_ids`, none of which is generated unless it is forced."""
        return [word[0] for word in self.bad_words_ids]

    @property
    def named(self) -> list[int]:
        """The tokens that an answer may need whatever it says: start, end and forced ones."""
        forced = self.forced_eos_token_id
        ends = forced if isinstance(forced, list) else [forced]
        named = [self.decoder_start_token_id, *self.eos_token_id, self.forced_bos_token_id, *ends]
        return sorted({token for token in named if token is not None})

    @property
    def ends_tie(self) -> bool:
        """Whether several tokens are forced into the last place, where their scores are equal.

        Greedy search takes the first one, as `argmax` does. Of beam search the result is uncertain:
        the order in which `torch.topk` returns equal values differs between processors.
        """
        forced = self.forced_eos_token_id
        return isinstance(forced, list) and len({*forced} - {*self.suppress_tokens}) > 1

    def with_options(self, num_beams: int | None, max_new_tokens: int | None) -> Generation:
        """The same settings with what is not None replaced.

        Raises:
            UsageError: a number below 1, more tokens than the decoder has positions for, or several
                beams for a model whose `forced_eos_token_id` has several tokens.
        """
        self._require_possible(num_beams, max_new_tokens)
        options: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": max_new_tokens}
        given = {name: value for name, value in options.items() if value is not None}
        return replace(self, **given) if given else self

    def with_length(self, tokens: int) -> Generation:
        """A greedy copy that generates exactly `tokens` tokens, whatever they are.

        Raises:
            UsageError: a number below 1, or more than the decoder has positions for.
        """
        self._require_possible(1, tokens)
        return replace(
            self,
            num_beams=1,
            max_new_tokens=tokens,
            eos_token_id=[],
            forced_eos_token_id=None,
            min_length=0,
        )

    def _require_possible(self, num_beams: int | None, max_new_tokens: int | None) -> None:
        check_limits(num_beams=num_beams, max_new_tokens=max_new_tokens)
        beams = self.num_beams if num_beams is None else num_beams
        if beams > 1 and self.ends_tie:
            raise UsageError(
                f"{beams} beams: the model's forced_eos_token_id has several tokens, which tie in "
                "the last place, so that a beam search has no certain result; ask for one beam",
                id="forced-ends-tie",
            )
        if max_new_tokens is not None and max_new_tokens > (self.positions or max_new_tokens):
            raise UsageError(
                f"{max_new_tokens} tokens are more than the {self.positions} that the model can "
                "generate; ask for fewer",
                id="length-beyond-positions",
            )


@dataclass(frozen=True, kw_only=True)
class Languages:
    """The languages of a multilingual translator.

    Args:
        codes: code of each language -> its token.
        source: code of the language that it translates from; every source holds its token.
        target: code of the language that it translates into; None where nothing is set.
        starts: whether decoders start with the target's token; else it is forced to be the first.
    """

    codes: Mapping[str, int]
    source: str
    target: str | None = None
    starts: bool = False

    def token(self, option: str, code: str) -> int:
        """The token of a language.

        Args:
            option: the option that names the language, for the message.
            code: of the language.

        Raises:
            UsageError: the model has no such language.
        """
        if code not in self.codes:
            known = sorted(self.codes)
            raise UsageError(
                f"{option} {code}: the model has no such language{did_you_mean(code, known)}; it "
                f"has {', '.join(known[:12])}{', …' if len(known) > 12 else ''}",
                id="language-unknown",
            )
        return self.codes[code]


class OutputTokens:
    """The tokens that a decoder scores; the search numbers them from 0 on.

    Args:
        ids: the tokenizer's ids of these tokens, ascending.
    """

    def __init__(self, ids: Sequence[int] | Tokens) -> None:
        self.ids: Tokens = np.asarray(ids, dtype=np.int64)

    def indices(self, ids: Tokens) -> Tokens:
        """Turn ids into indices.

        Args:
            ids: of tokens, any shape.

        Returns:
            Their places in `self.ids`, the same shape.

        Raises:
            InputError: the decoder does not score one of them.
        """
        missing = ids[~np.isin(ids, self.ids)]
        if missing.size:
            raise InputError(
                f"this decoder cannot produce token {missing[0]}; see its output tokens",
                id="token-not-in-output",
            )
        return np.searchsorted(self.ids, ids)

    def settings(self, settings: Generation) -> Generation:
        """Turn generation settings with ids into the same settings with indices.

        Tokens that the decoder does not score are left out of lists.

        Raises:
            InputError: it does not score the start token, or one that is forced.
        """

        def one(token: int | None) -> int | None:
            return None if token is None else int(self.indices(np.array(token)))

        def some(tokens: Sequence[int]) -> list[int]:
            # Tokens that the decoder does not score cannot occur.
            ids = np.array(tokens, np.int64)
            indices: list[int] = self.indices(ids[np.isin(ids, self.ids)]).tolist()
            return indices

        forced = settings.forced_eos_token_id
        return replace(
            settings,
            decoder_start_token_id=int(self.indices(np.array(settings.decoder_start_token_id))),
            eos_token_id=some(settings.eos_token_id),
            forced_bos_token_id=one(settings.forced_bos_token_id),
            forced_eos_token_id=some(forced) if isinstance(forced, list) else one(forced),
            bad_words_ids=[[token] for token in some(settings.banned)],
            suppress_tokens=some(settings.suppress_tokens),
        )

    def rows(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """Turn rows of indices into rows of ids."""
        return [self.ids[list(row)].tolist() for row in rows]
