"""A model's generation settings for the runtime."""

from __future__ import annotations

from typing import Any

from torch import nn

from compressor.runtime.artifact import Generation


def generation_settings(model: nn.Module) -> dict[str, Any]:
    """The settings of the generation configuration that the runtime needs, with defaults."""
    settings: Any = model.generation_config
    end = settings.eos_token_id
    ends = [] if end is None else [end] if isinstance(end, int) else list(end)
    # As in `generate`, the end token is never banned.
    banned = {word[0] for word in settings.bad_words_ids or []} - set(ends)
    # Numbers of tokens include the start token, as in `generate`.
    min_length = settings.min_length or 0
    if settings.min_new_tokens is not None:
        min_length = int(settings.min_new_tokens) + 1
    max_length = settings.max_length
    if max_length is None and settings.max_new_tokens is None:
        max_length = 21  # generate's default: the start token and 20 more
    return {
        "decoder_start_token_id": settings.decoder_start_token_id,
        "eos_token_id": ends,
        "max_length": max_length,
        "max_new_tokens": settings.max_new_tokens,
        "min_length": min_length,
        "num_beams": settings.num_beams or 1,
        "length_penalty": 1.0 if settings.length_penalty is None else settings.length_penalty,
        "early_stopping": settings.early_stopping or False,
        "forced_bos_token_id": settings.forced_bos_token_id,
        "forced_eos_token_id": settings.forced_eos_token_id,  # one, or several that tie
        "suppress_tokens": sorted(banned | set(settings.suppress_tokens or [])),
        "no_repeat_ngram_size": settings.no_repeat_ngram_size or 0,
        "renormalize_logits": bool(settings.renormalize_logits),
    }


def length_option(settings: Generation, tokens: int) -> dict[str, int]:
    """The option that limits `generate` to `tokens` tokens after the start token.

    It is the one in the checkpoint's settings, since transformers warns if both are given.
    """
    if settings.max_new_tokens is not None:
        return {"max_new_tokens": tokens}
    return {"max_length": tokens + 1}
