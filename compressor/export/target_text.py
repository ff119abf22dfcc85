"""Text in the target language, which says what tokens a translator has to be able to produce.

Marian's decoder, as CTranslate2's, can be given a short list of output words; here the list is made
once, of text such as users translate into, and the exported decoder has no rows for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from compressor.errors import InputError
from compressor.tasks.translation import require_target_language

CHUNK = 2000  # lines that are cut into tokens at once


def read_target_text(
    path: Path, tokenizer: Any, progress: Callable[[int], None] = lambda lines: None
) -> tuple[int, set[int]]:
    """Count the lines of a text and collect the tokens that they are cut into.

    Args:
        path: UTF-8, a sentence a line; empty lines do not count.
        tokenizer: the checkpoint's, with its languages set.
        progress: told how many lines are done.

    Returns:
        Number of lines, and ids of their tokens, special ones included.

    Raises:
        InputError: the file cannot be read, or holds no text.
    """
    require_target_language(tokenizer)
    seen: set[int] = set()
    count = 0
    lines = _lines(path)
    while chunk := list(islice(lines, CHUNK)):
        encoded = tokenizer(text_target=chunk, return_attention_mask=False, verbose=False)
        seen.update(token for ids in encoded["input_ids"] for token in ids)
        count += len(chunk)
        progress(count)
    if not count:
        raise InputError(
            f"{path} holds no text; give sentences in the target language, a line each"
        )
    return count, seen


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from _texts(file)
    except OSError as error:
        raise InputError(f"cannot read target text {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"target text {path} is not UTF-8: {error.reason}") from error


def _texts(lines: Iterable[str]) -> Iterator[str]:
    return (text for line in lines if (text := line.strip()))
