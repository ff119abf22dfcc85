"""How a model generates, as the runtime needs to know it."""

from __future__ import annotations

from typing import Any

from torch import nn

from compressor.errors import InputError

# Settings of `generate` that the runtime does not implement, with the values that change nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "do_sample": (None, False),
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "diversity_penalty": (None, 0.0),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0.0),
    "exponential_decay_length_penalty": (None,),
    "sequence_bias": (None,),
    "begin_suppress_tokens": (None, []),
    "min_new_tokens": (None, 0),
    "guidance_scale": (None, 1.0),
    "prompt_lookup_num_tokens": (None,),
    "constraints": (None,),
    "force_words_ids": (None,),
}


def generation_settings(model: nn.Module) -> dict[str, Any]:
    """What the runtime needs of the model's generation configuration, unset values resolved."""
    settings: Any = model.generation_config
    for name, neutral in _NEUTRAL.items():
        value = getattr(settings, name, None)
        if value not in neutral:
            raise InputError(
                f"generation_config.json sets {name}={value!r}, which the ONNX runtime of this "
                f"tool does not support; remove it from the checkpoint's generation_config.json",
                id="generation-setting-unsupported",
            )
    words = settings.bad_words_ids or []
    if any(len(word) != 1 for word in words):
        raise InputError(
            "generation_config.json bans words of several tokens (bad_words_ids), which is not "
            "supported; remove them from the checkpoint's generation_config.json",
            id="bad-words-unsupported",
        )
    end = settings.eos_token_id
    ends = [] if end is None else [end] if isinstance(end, int) else list(end)
    # `generate` never bans the end token either.
    banned = {word[0] for word in words} - set(ends)
    max_length = settings.max_length
    if max_length is None and settings.max_new_tokens is None:
        max_length = 21  # generate's default: the start token and 20 more
    return {
        "decoder_start_token_id": settings.decoder_start_token_id,
        "eos_token_id": ends,
        "max_length": max_length,
        "max_new_tokens": settings.max_new_tokens,
        "min_length": settings.min_length or 0,
        "num_beams": settings.num_beams or 1,
        "length_penalty": 1.0 if settings.length_penalty is None else settings.length_penalty,
        "early_stopping": settings.early_stopping or False,
        "forced_bos_token_id": settings.forced_bos_token_id,
        "forced_eos_token_id": settings.forced_eos_token_id,  # one, or several that tie
        "suppress_tokens": sorted(banned | set(settings.suppress_tokens or [])),
        "no_repeat_ngram_size": settings.no_repeat_ngram_size or 0,
        "renormalize_logits": bool(settings.renormalize_logits),
    }
