"""Greedy search in NumPy, with the tokens of transformers' `generate`, and what searches share.

Follows `GenerationMixin._sample` (without sampling) of transformers 5. Rows are rows of the
decoder's batch.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from compressor.runtime.batching import Floats, log_softmax
from compressor.runtime.generation import Generation, Tokens

Scores = Floats

# Finished sentences leave the batch when they are at least this share of it. Greedy search took 6.1
# CPU seconds when none ever left, and 3.5 to 3.8 with shares from a half to a sixteenth.
MIN_FINISHED_SHARE = 0.125


class Decoder(Protocol):
    """A model that has read the sources, with the tokens decoded so far for each row."""

    def step(self, tokens: Tokens) -> None:
        """Append one token to each row.

        Args:
            tokens: [rows].
        """

    def best(self) -> Tokens:
        """The next token with the largest logit in each row, [rows]."""

    def scores(self) -> Scores:
        """Logits of the next token, [rows, vocabulary], which may be overwritten."""

    def reorder(self, rows: Tokens) -> None:
        """Let row i continue what row `rows[i]`, of the same source, has decoded.

        Args:
            rows: [rows].
        """

    def keep(self, rows: Tokens) -> None:
        """Reduce the batch to these rows, with their sources.

        Args:
            rows: numbers of rows, [rows to keep]; they may repeat.
        """

    def top(self, count: int) -> tuple[Scores, Tokens] | None:
        """The best next tokens of each row, selected where the logits are.

        Args:
            count: how many; all, where there are fewer.

        Returns:
            Their log-probabilities [rows, count], best first, and the tokens [rows, count]; None
            from a decoder that shows its logits alone.
        """


def apply_rules(settings: Generation, scores: Scores, tokens: Tokens) -> None:
    """Change the scores of the next token, in place, by the rules of the settings.

    In the order of `GenerationMixin._get_logits_processor` of transformers: a token that is banned
    may be forced, and one that is suppressed may not.

    Args:
        settings: how to decode, with indices of tokens.
        scores: [rows, vocabulary].
        tokens: so far, [rows, step], with the start token as the first; so steps count from 1.
    """
    step, size = tokens.shape[1], settings.no_repeat_ngram_size
    if 0 < size <= step:  # no n-gram of this size occurs twice in a row
        windows = sliding_window_view(tokens, size, axis=1)  # [rows, step - size + 1, size]
        prefix = tokens[:, None, step + 1 - size :]  # [rows, 1, size - 1]
        rows, starts = np.nonzero((windows[..., :-1] == prefix).all(axis=-1))
        scores[rows, windows[rows, starts, -1]] = -np.inf
    scores[:, settings.banned] = -np.inf
    if step < settings.min_length:
        scores[:, settings.eos_token_id] = -np.inf
    forced = forced_tokens(settings, step)
    if forced is not None:
        scores.fill(-np.inf)
        scores[:, forced] = 0
    scores[:, settings.suppress_tokens] = -np.inf
    if settings.renormalize_logits:
        log_softmax(scores)


def forced_tokens(settings: Generation, step: int) -> list[int] | None:
    """The tokens of which one must be chosen; None where any may be."""
    ends = settings.forced_eos_token_id
    if step == settings.limit and ends is not None:
        return [ends] if isinstance(ends, int) else ends
    if step == 1 and settings.forced_bos_token_id is not None:
        return [settings.forced_bos_token_id]
    return None


def greedy(decoder: Decoder, rows: int, settings: Generation) -> list[list[int]]:
    """Greedy search: the most probable token in each step.

    Logits are read where a rule may change which token is the best.

    Args:
        decoder: before its first step.
        rows: of its batch.
        settings: how to decode, with indices of tokens.

    Returns:
        Tokens of each row without the start token, up to and including the end token.
    """
    limit = settings.limit
    ends = frozenset(settings.eos_token_id)
    left_out = frozenset([*settings.banned, *settings.suppress_tokens])
    ruled = {step for step in {1, limit} if forced_tokens(settings, step) is not None}
    ruled |= set(range(1, min(settings.min_length, limit + 1)))
    always_ruled = settings.no_repeat_ngram_size > 0
    tokens = np.full((rows, limit + 1), settings.decoder_start_token_id, dtype=np.int64)
    lengths = np.full(rows, limit)  # rows go on after their end until they leave
    live = np.arange(rows)  # output row of each row of the decoder
    done = np.zeros(rows, dtype=bool)  # ended, but still a row of the decoder
    chosen = tokens[:, 0]
    for step in range(1, limit + 1):
        decoder.step(chosen)
        chosen = decoder.best()
        best = chosen.tolist()  # Python's sets are faster than NumPy for so few
        # Not `renormalize_logits`: log-probabilities have the order of the logits.
        if always_ruled or step in ruled or not left_out.isdisjoint(best):
            scores = decoder.scores()
            apply_rules(settings, scores, tokens[live, :step])
            chosen = scores.argmax(axis=1)
            best = chosen.tolist()
        tokens[live, step] = chosen
        if ends.isdisjoint(best):
            continue
        ended = np.array([token in ends for token in best]) & ~done
        lengths[live[ended]] = step
        done |= ended
        if done.all():
            break
        # After the last step nothing is decoded any more, so nothing is gained by copying.
        if done.mean() >= MIN_FINISHED_SHARE and step < limit:
            decoder.keep(np.flatnonzero(~done))
            chosen, live = chosen[~done], live[~done]
            done = np.zeros(len(live), dtype=bool)
    return [row[1 : 1 + n].tolist() for row, n in zip(tokens, lengths, strict=True)]
