"""Rules that change next-token scores before a token is chosen, as transformers applies them.

A step is the number of the token to choose, from 1 on, which is also the number of tokens so far,
the start token included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from compressor.runtime.generation import Generation

Scores = NDArray[np.float32]
Tokens = NDArray[np.int64]

# Elements of a block of rows whose exponentials fit into the CPU's cache.
_BLOCK = 1 << 18


def log_softmax(scores: Scores) -> None:
    """Turn scores [rows, vocabulary] into log-probabilities, in place."""
    rows = max(1, _BLOCK // scores.shape[1])
    for start in range(0, len(scores), rows):  # views: a copy of all scores would be large
        block = scores[start : start + rows]
        block -= block.max(axis=1, keepdims=True)
        block -= np.log(np.exp(block).sum(axis=1, keepdims=True))


def sigmoid(logits: Scores) -> Scores:
    """Probabilities of logits, which stand for one class each."""
    probabilities: Scores = 0.5 + 0.5 * np.tanh(0.5 * logits)  # overflows nowhere
    return probabilities


def activated(logits: Scores, activation: str) -> Scores:
    """Logits of a cross-encoder after its activation function, `identity` or `sigmoid`."""
    return sigmoid(logits) if activation == "sigmoid" else logits


def apply_rules(settings: Generation, scores: Scores, tokens: Tokens) -> None:
    """Apply the rules of `settings`, in the order of transformers' `_get_logits_processor`.

    Args:
        scores: [rows, vocabulary], changed in place.
        tokens: the tokens so far [rows, step].
    """
    step, size = tokens.shape[1], settings.no_repeat_ngram_size
    if 0 < size <= step:  # no n-gram of this size occurs twice in a row
        windows = sliding_window_view(tokens, size, axis=1)  # [rows, step - size + 1, size]
        prefix = tokens[:, None, step + 1 - size :]  # [rows, 1, size - 1]
        rows, starts = np.nonzero((windows[..., :-1] == prefix).all(axis=-1))
        scores[rows, windows[rows, starts, -1]] = -np.inf
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


def changes_best(settings: Generation, step: int, best: Sequence[int]) -> bool:
    """Whether the rules may choose another token than the one with the largest logit.

    Args:
        best: the token with the largest logit in each row.
    """
    return (
        # Not `renormalize_logits`: log-probabilities have the order of the logits.
        settings.no_repeat_ngram_size > 0
        or step < settings.min_length
        or forced_tokens(settings, step) is not None
        or not set(settings.suppress_tokens).isdisjoint(best)
    )


def excluded(settings: Generation, step: int) -> list[int] | None:
    """Tokens that may not be chosen in a step.

    None where the rules change other scores, too, or look at the rows' tokens.
    """
    if (
        settings.no_repeat_ngram_size > 0
        or settings.renormalize_logits
        or forced_tokens(settings, step) is not None
    ):
        return None
    ends = settings.eos_token_id if step < settings.min_length else []
    return [*settings.suppress_tokens, *ends]
