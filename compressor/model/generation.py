"""How a model generates: `generation_config.json`, checked when a checkpoint is opened.

`SUPPORTED`, `HARMLESS` and `NEUTRAL` together have every attribute of transformers'
`GenerationConfig`, from version 5.17 on.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from compressor.errors import CompressWarning, InputError, did_you_mean
from compressor.model.configuration import first_line, is_whole
from compressor.model.modes import quiet_transformers
from compressor.storage.input_files import read_json

GENERATION_FILE = "generation_config.json"
MOST_BEAMS = 1024
MOST_LENGTH = 1_000_000


@dataclass(frozen=True)
class Values:
    """The values of a setting, beside null.

    Args:
        wanted: which they are, for messages; `{rows}` stands for the number of tokens.
        hold: whether a value, of a model with so many tokens, is one of them.
    """

    wanted: str
    hold: Callable[[Any, int], bool]


def _is_number(value: Any, rows: int = 0) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_token(value: Any, rows: int) -> bool:
    return is_whole(value) and 0 <= value < rows


def _are_tokens(value: Any, rows: int) -> bool:
    return isinstance(value, list) and all(_is_token(x, rows) for x in value)


def _are_ends(value: Any, rows: int) -> bool:
    return _is_token(value, rows) or (value != [] and _are_tokens(value, rows))


def _are_words(value: Any, rows: int) -> bool:
    words = value if isinstance(value, list) else []
    return words != [] and all(word != [] and _are_tokens(word, rows) for word in words)


def _whole(least: int, most: int = MOST_LENGTH) -> Values:
    return Values(
        f"a number from {least} to {most:,}", lambda x, rows: is_whole(x) and least <= x <= most
    )


_TOKEN = Values("a token below {rows:,}", _is_token)
_TOKENS = Values("a list of tokens below {rows:,}", _are_tokens)
_ENDS = Values("one or several tokens below {rows:,}", _are_ends)
_WORDS = Values("a list of lists of tokens below {rows:,}", _are_words)
_NUMBER = Values("a finite number", _is_number)
_FLAG = Values("true or false", lambda x, rows: isinstance(x, bool))
_STOPS = Values("true, false or never", lambda x, rows: isinstance(x, bool) or x == "never")
_SHARE = Values("a number between 0 and 1", lambda x, rows: _is_number(x) and 0 < x < 1)
_TEXT = Values("a text", lambda x, rows: isinstance(x, str))
_ANY = Values("anything", lambda x, rows: True)

# The search of the runtime follows these, too.
SUPPORTED: Mapping[str, Values] = {
    **dict.fromkeys(
        ("decoder_start_token_id", "pad_token_id", "bos_token_id", "forced_bos_token_id"), _TOKEN
    ),
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id"), _ENDS),
    "suppress_tokens": _TOKENS,
    "bad_words_ids": _WORDS,
    "num_beams": _whole(1, MOST_BEAMS),
    "max_length": _whole(2),  # the start token and another one
    "max_new_tokens": _whole(1),
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size"), _whole(0)),
    "length_penalty": _NUMBER,
    "early_stopping": _STOPS,
    "renormalize_logits": _FLAG,
}
# What `generate` returns beside the tokens.
_RETURNED = (
    "return_dict_in_generate",
    "output_scores",
    "output_logits",
    "output_attentions",
    "output_hidden_states",
)
# These change none of the tokens that transformers generates.
HARMLESS: Mapping[str, Values] = {
    # They count where tokens are sampled (do_sample).
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
        _NUMBER,
    ),
    "top_k": _whole(0),
    # They count where another model drafts, which is an argument of `generate`.
    **dict.fromkeys(
        ("num_assistant_tokens", "assistant_lookbehind", "target_lookbehind"), _whole(0)
    ),
    **dict.fromkeys(("num_assistant_tokens_schedule", "speculation_type"), _TEXT),
    "assistant_confidence_threshold": _NUMBER,
    "assistant_ensemble_weight": _SHARE,
    "max_matching_ngram_size": _whole(1),  # counts with prompt_lookup_num_tokens
    **dict.fromkeys(_RETURNED, _FLAG),
    # How fast the tokens come, and in how much memory.
    **dict.fromkeys(("use_cache", "disable_compile"), _FLAG),
    "max_cache_len": _whole(1),
    "cache_config": _ANY,  # counts with a quantized cache
    "continuous_batching_config": _ANY,  # counts in `generate_batch`
    "remove_invalid_values": _FLAG,  # counts where logits are not finite, and weights are
    **dict.fromkeys(("transformers_version", "_from_model_config", "_commit_hash"), _ANY),
}

# What is not supported, with the values that change nothing.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(
        (
            "exponential_decay_length_penalty",
            "sequence_bias",
            "watermarking_config",
            "stop_strings",
            "max_time",
            "constraints",
            "force_words_ids",
            "dola_layers",
            "prompt_lookup_num_tokens",
            "assistant_early_exit",
            "prefill_chunk_size",  # transformers 5.23 answers otherwise where a batch has padding
            "compile_config",  # transformers itself reads none from a file
        ),
        (),
    ),
    **dict.fromkeys(
        ("do_sample", "token_healing", "is_assistant", "use_mtp", "low_memory"), (False,)
    ),
    **dict.fromkeys(("num_beam_groups", "num_return_sequences"), (1,)),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "guidance_scale"), (1.0,)),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha"), (0.0,)),
    "encoder_no_repeat_ngram_size": (0,),
    "begin_suppress_tokens": ([],),
    "cache_implementation": ("dynamic", "static", "hybrid"),  # others are for some models alone
}

# Whatever a model's settings say: the tokens alone, with the usual cache.
_TOKENS_ALONE: dict[str, Any] = {
    **dict.fromkeys(_RETURNED, False),
    "use_cache": True,
    "cache_implementation": None,
}


def check_generation(directory: Path, rows: int) -> None:
    """Check how a checkpoint generates; without a file of its own, `config.json` says it.

    Warns of names in the file that transformers does not know. Raises InputError for an unreadable
    file, a value that a setting cannot have, and settings that are not supported.

    Args:
        rows: of the model's embeddings.
    """
    path = _settings_file(directory)
    try:
        values = read_json(path)
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
    except OSError as error:
        raise _malformed(path, error.strerror or first_line(error)) from error
    except ValueError as error:
        raise _malformed(path, first_line(error)) from error
    unknown = [name for name, value in values.items() if not _is_known(name, value, rows, path)]
    if path.name != GENERATION_FILE:
        return
    if unknown:
        near = next(filter(None, (did_you_mean(x, SUPPORTED) for x in unknown)), "")
        warnings.warn(
            f"{path} sets {', '.join(unknown)[:200]}, which transformers does not know and ignores"
            f"{near}",
            CompressWarning,
            stacklevel=2,
        )
    try:
        with quiet_transformers():
            transformers.GenerationConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # whatever the library trips over is in the files
        raise _malformed(path, first_line(error)) from error


def _settings_file(directory: Path) -> Path:
    path = directory / GENERATION_FILE
    return path if path.exists() else directory / "config.json"


def _is_known(name: str, value: Any, rows: int, path: Path) -> bool:
    """Whether a setting is known, or null; raises InputError for a value that it cannot have."""
    if value is None:
        return True
    values = SUPPORTED.get(name) or HARMLESS.get(name)
    if values is not None:
        if not values.hold(value, rows):
            wanted = values.wanted.format(rows=rows)
            raise _malformed(path, f"{name} is {repr(value)[:40]}, not {wanted}")
        if name == "bad_words_ids" and any(len(word) > 1 for word in value):
            raise InputError(
                f"{path} bans words of several tokens (bad_words_ids), which is not supported; "
                "remove them from that file",
                id="bad-words-unsupported",
            )
        return True
    if name in NEUTRAL:
        refused = value not in NEUTRAL[name]
    else:  # of a later version of transformers, or of none
        refused = path.name == GENERATION_FILE and hasattr(transformers.GenerationConfig(), name)
    if refused:
        others = ", ".join(map(repr, NEUTRAL.get(name, ())))
        raise InputError(
            f"{path} sets {name} to {repr(value)[:40]}, which is not supported; remove it from "
            f"that file{f', or set it to {others}' if others else ''}",
            id="generation-setting-unsupported",
        )
    return name in NEUTRAL


def require_start(settings: Any, directory: Path) -> None:
    """Set the token that a model starts with, in place, as `generate` does; require one."""
    if settings.decoder_start_token_id is None:
        if settings.bos_token_id is None:
            path = _settings_file(directory)
            raise _malformed(path, "it has neither decoder_start_token_id nor bos_token_id")
        settings.decoder_start_token_id = settings.bos_token_id


def generate(model: Any, inputs: Mapping[str, Any], **options: Any) -> Any:
    """Token ids [rows, tokens] of transformers' `generate`, never sampled.

    Args:
        inputs: `input_ids` and `attention_mask`.
        options: of `generate`, which replace the model's own settings.
    """
    with quiet_transformers():
        return model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=False,
            **_TOKENS_ALONE,
            **options,
        )


def save_generation(settings: Any, directory: Path) -> None:
    """Write `generation_config.json`, even with settings that have no effect.

    `save_pretrained` of transformers refuses those.
    """
    settings.to_json_file(directory / GENERATION_FILE, keys_to_pop=["compile_config"])


def _malformed(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} does not say how to generate: {reason}; get the checkpoint again, or mend the "
        "file",
        id="generation-config-malformed",
    )
