"""Rules that change next-token scores before a token is chosen, as transformers applies them.

Each rule works in place on scores [rows, vocabulary] and sees the tokens so far [rows, length],
the start token included. The order is that of transformers' `_get_logits_processor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from compressor.runtime.generation import Generation

Scores = NDArray[np.float32]
Tokens = NDArray[np.int64]
Rule = Callable[[Scores, Tokens], None]

# Elements of a block of rows whose exponentials fit into the CPU's cache.
_BLOCK = 1 << 18


def log_softmax(scores: Scores, _: Tokens | None = None) -> None:
    """Turn scores [rows, vocabulary] into log-probabilities, in place."""
    rows = max(1, _BLOCK // scores.shape[1])
    for start in range(0, len(scores), rows):  # views: a copy of all scores would be large
        block = scores[start : start + rows]
        block -= block.max(axis=1, keepdims=True)
        block -= np.log(np.exp(block).sum(axis=1, keepdims=True))


def sigmoid(logits: Scores) -> Scores:
    """Probabilities of logits, which stand for one class each."""
    found: Scores = 0.5 + 0.5 * np.tanh(0.5 * logits)  # overflows nowhere
    return found


def activated(logits: Scores, activation: str) -> Scores:
    """What a cross-encoder's activation function makes of its logits: `identity` or `sigmoid`."""
    return sigmoid(logits) if activation == "sigmoid" else logits


def rules(settings: Generation) -> list[Rule]:
    """The rules that `settings` asks for, in the order in which they must be applied."""
    chosen: list[Rule] = []
    if settings.no_repeat_ngram_size > 0:
        chosen.append(_no_repeat(settings.no_repeat_ngram_size))
    if settings.min_length > 0:
        chosen.append(_min_length(settings.min_length, settings.eos_token_id))
    if settings.forced_bos_token_id is not None:
        chosen.append(_forced(1, [settings.forced_bos_token_id]))
    if settings.forced_eos_token_id is not None:
        ends = settings.forced_eos_token_id
        chosen.append(_forced(settings.limit, [ends] if isinstance(ends, int) else ends))
    if settings.suppress_tokens:
        chosen.append(_suppress(settings.suppress_tokens))
    if settings.renormalize_logits:
        chosen.append(log_softmax)
    return chosen


def changes_best(settings: Generation, step: int, best: Sequence[int]) -> bool:
    """Whether the rules may choose another token than the one with the largest logit.

    Args:
        step: number of the token to choose, from 1 on.
        best: the token with the largest logit in each row.
    """
    return (
        # Not `renormalize_logits`: log-probabilities have the order of the logits. So far there are
        # `step` tokens with the start token, which `min_length` counts too.
        settings.no_repeat_ngram_size > 0
        or step < settings.min_length
        or (step == 1 and settings.forced_bos_token_id is not None)
        or (step == settings.limit and settings.forced_eos_token_id is not None)
        or not set(settings.suppress_tokens).isdisjoint(best)
    )


def excluded(settings: Generation, step: int) -> list[int] | None:
    """Tokens that may not be chosen in a step; None where the rules change other scores, too, or
    look at the rows' tokens. Numbers of steps are those of `changes_best`.
    """
    if (
        settings.no_repeat_ngram_size > 0
        or settings.renormalize_logits
        or (step == 1 and settings.forced_bos_token_id is not None)
        or (step == settings.limit and settings.forced_eos_token_id is not None)
    ):
        return None
    ends = settings.eos_token_id if step < settings.min_length else []
    return [*settings.suppress_tokens, *ends]


def _no_repeat(size: int) -> Rule:
    """No n-gram of `size` tokens occurs twice in a row."""

    def apply(scores: Scores, tokens: Tokens) -> None:
        length = tokens.shape[1]
        # NumPy has no windows that are longer than the text.
        if length < size:
            return
        windows = sliding_window_view(tokens, size, axis=1)  # [rows, length - size + 1, size]
        prefix = tokens[:, None, length + 1 - size :]  # [rows, 1, size - 1]
        rows, starts = np.nonzero((windows[..., :-1] == prefix).all(axis=-1))
        scores[rows, windows[rows, starts, -1]] = -np.inf

    return apply


def _min_length(length: int, ends: list[int]) -> Rule:
    """No end before `length` tokens."""

    def apply(scores: Scores, tokens: Tokens) -> None:
        if tokens.shape[1] < length:
            scores[:, ends] = -np.inf

    return apply


def _forced(length: int, forced: list[int]) -> Rule:
    """Only `forced` may follow the first `length` tokens."""

    def apply(scores: Scores, tokens: Tokens) -> None:
        if tokens.shape[1] == length:
            scores.fill(-np.inf)
            scores[:, forced] = 0

    return apply


def _suppress(suppressed: list[int]) -> Rule:
    """These tokens never."""

    def apply(scores: Scores, _: Tokens) -> None:
        scores[:, suppressed] = -np.inf

    return apply
