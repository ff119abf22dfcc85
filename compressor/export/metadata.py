"""`onnx/graphs.json`: what the runtime must know about the graphs beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from compressor.errors import InputError
from compressor.model.checkpoint import Checkpoint
from compressor.model.sublayers import Mask
from compressor.storage.files import write_at_once, write_json
from compressor.tasks import get_task

GRAPHS = "graphs.json"
OUTPUT_TOKENS = "output_tokens.json"
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


def max_source_tokens(checkpoint: Checkpoint) -> int:
    """The longest input the model has positions for, special tokens included."""
    positions = checkpoint.entry.positions(checkpoint.model.config)
    return min(positions, int(checkpoint.tokenizer.model_max_length))


def write_metadata(
    checkpoint: Checkpoint,
    model: nn.Module,
    mask: Mask,
    files: dict[str, str],
    directory: Path,
    tokens: list[int] | None = None,
) -> None:
    """Write `graphs.json` for float32 graphs in `directory`.

    Args:
        tokens: as the graphs were exported with; a list goes to a file beside `graphs.json`.

    Raises:
        InputError: the generation configuration holds settings the runtime cannot follow.
    """
    data: dict[str, Any] = {
        "schema": 1,
        "task": checkpoint.entry.task,
        "precisions": {"fp32": files},
        "default_precision": "fp32",
        "tokenizer": "tokenizer.json",
        "max_source_tokens": max_source_tokens(checkpoint),
        "pad_token_id": int(checkpoint.tokenizer.pad_token_id),
        "inputs": list(checkpoint.entry.inputs),
    }
    config = model.config
    task = get_task(checkpoint.entry.task)
    if not task.generates:
        data["labels"] = task.label_names(config)
    else:
        counts = mask.counts()
        layers = range(int(config.decoder_layers))  # type: ignore[union-attr,arg-type]
        data["decoder_self_heads"] = [counts[f"decoder_self.{i}"] for i in layers]
        data["cross_heads"] = [counts[f"cross.{i}"] for i in layers]
        data["head_dim"] = next(x.unit_width for x in checkpoint.layers if x.kind == "cross")
        data["vocab_size"] = int(model.lm_head.out_features)  # type: ignore[union-attr,arg-type]
        if tokens is not None:
            data["output_tokens"] = OUTPUT_TOKENS
            write_at_once(directory / OUTPUT_TOKENS, f"{json.dumps(tokens)}\n")
        positions = checkpoint.entry.positions(config)
        data["generation"] = generation_settings(model) | {"positions": positions}
    write_json(directory / GRAPHS, data)


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
        "forced_eos_token_id": _single(settings.forced_eos_token_id),
        "suppress_tokens": sorted(banned | set(settings.suppress_tokens or [])),
        "no_repeat_ngram_size": settings.no_repeat_ngram_size or 0,
        "renormalize_logits": bool(settings.renormalize_logits),
    }


def _single(value: Any) -> int | None:
    return value[0] if isinstance(value, (list, tuple)) else value
