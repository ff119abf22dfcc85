"""How a translator generates: `generation_config.json`, checked when the checkpoint is opened."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers

from compressor.errors import InputError
from compressor.model.configuration import first_line
from compressor.storage.input_files import read_json

GENERATION_FILE = "generation_config.json"
MOST_BEAMS = 1024
MOST_LENGTH = 1_000_000


def read_generation(directory: Path) -> Any | None:
    """The generation configuration of a checkpoint; None where it has no file of its own.

    Raises:
        InputError: it cannot be read.
    """
    path = directory / GENERATION_FILE
    if not path.exists():
        return None
    try:
        if not isinstance(read_json(path), dict):
            raise ValueError("it is not a JSON object")
        return transformers.GenerationConfig.from_pretrained(directory, local_files_only=True)
    except OSError as error:
        raise _malformed(path, error.strerror or first_line(error)) from error
    except Exception as error:  # whatever the library trips over is in the files
        raise _malformed(path, first_line(error)) from error


def require_generation(settings: Any, rows: int, directory: Path) -> None:
    """Check what a model generates by, and set the token that it starts with.

    Args:
        settings: the model's generation configuration, from whichever file it came.
        rows: of its embeddings.

    Raises:
        InputError: a number is none, or out of bounds; a token is not in the vocabulary, or there
            is none to start with.
    """
    path = directory / GENERATION_FILE
    path = path if path.exists() else directory / "config.json"

    def whole(least: int, most: int) -> Callable[[Any], bool]:
        return lambda x: isinstance(x, int) and not isinstance(x, bool) and least <= x <= most

    token = whole(0, rows - 1)

    def tokens(value: Any) -> bool:
        return token(value) or (isinstance(value, list) and all(map(token, value)))

    def words(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(x, list) and tokens(x) for x in value)

    def finite(value: Any) -> bool:
        return isinstance(value, int | float) and math.isfinite(value)

    count = whole(0, MOST_LENGTH)
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        **dict.fromkeys(
            ("decoder_start_token_id", "pad_token_id", "bos_token_id", "forced_bos_token_id"),
            (token, f"a token below {rows:,}"),
        ),
        **dict.fromkeys(
            ("eos_token_id", "forced_eos_token_id", "suppress_tokens"),
            (tokens, f"one or several tokens below {rows:,}"),
        ),
        "bad_words_ids": (words, f"lists of tokens below {rows:,}"),
        "num_beams": (whole(1, MOST_BEAMS), f"a number from 1 to {MOST_BEAMS:,}"),
        **dict.fromkeys(
            ("max_length", "max_new_tokens"),
            (whole(1, MOST_LENGTH), f"a number from 1 to {MOST_LENGTH:,}"),
        ),
        **dict.fromkeys(
            ("min_length", "no_repeat_ngram_size"), (count, f"a number from 0 to {MOST_LENGTH:,}")
        ),
        "length_penalty": (finite, "a finite number"),
        "early_stopping": (lambda x: x in (True, False, "never"), "true, false or never"),
        "renormalize_logits": (lambda x: isinstance(x, bool), "true or false"),
    }
    for name, (holds, wanted) in checks.items():
        value = getattr(settings, name, None)
        if value is not None and not holds(value):
            raise _malformed(path, f"{name} is {repr(value)[:40]}, not {wanted}")
    if settings.decoder_start_token_id is None:
        if settings.bos_token_id is None:
            raise _malformed(path, "it has neither decoder_start_token_id nor bos_token_id")
        settings.decoder_start_token_id = settings.bos_token_id  # as `generate` does


def _malformed(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} does not say how to generate: {reason}; get the checkpoint again, or mend the "
        "file",
        id="generation-config-malformed",
    )
