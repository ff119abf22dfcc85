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


def count_lines(path: Path) -> int:
    """How many lines of the text are not empty: a fast check of the whole file.

    Raises:
        InputError: it cannot be read, is not UTF-8, or holds no text.
    """
    count = sum(1 for _ in _lines(path))
    if not count:
        raise InputError(
            f"{path} holds no text; give sentences in the target language, a line each"
        )
    return count


def tokens_of_text(
    path: Path, tokenizer: Any, progress: Callable[[int], None] = lambda lines: None
) -> set[int]:
    """The tokens that a text is cut into.

    Args:
        path: UTF-8, a sentence a line; empty lines do not count.
        tokenizer: the checkpoint's, with its languages set.
        progress: told how many lines are done.

    Returns:
        Their ids, special tokens included.

    Raises:
        InputError: the file cannot be read, or the tokenizer has no target language.
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
    return seen


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
