"""Which tokens a text in the target language consists of.

Marian and CTranslate2 can restrict a decoder to a short list of output words per sentence. Here the
list is made once, from text like that which users translate into, and the exported decoder has no
rows for other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from compressor.errors import InputError
from compressor.storage.input_files import require_regular
from compressor.tasks.encoder_decoder import require_target_language

CHUNK = 2000  # lines that are tokenized at once
Language = Literal["source", "target"]
SOURCE: Language = "source"
_WANTED = {
    "target": "sentences in the target language",
    SOURCE: "texts like those that the model will read",
}
Result = TypeVar("Result")


def count_lines(path: Path, language: Language = "target") -> int:
    """The number of lines that are not empty; a fast check of the whole file.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or holds no text.
    """
    count = sum(1 for _ in _lines(path, language))
    if not count:
        raise InputError(
            f"{path} holds no text; give {_WANTED[language]}, a line each",
            id=f"{language}-text-empty",
        )
    return count


def each_chunk(
    path: Path, language: Language, use: Callable[[list[str]], Iterable[Result]]
) -> Iterator[Result]:
    """What `use` makes of the lines of a text, many at a time.

    Raises:
        InputError: the file cannot be read.
    """
    lines = _lines(path, language)
    while chunk := list(islice(lines, CHUNK)):
        yield from use(chunk)


def tokens_of_text(
    path: Path, tokenizer: Any, progress: Callable[[int], None] = lambda lines: None
) -> set[int]:
    """The different tokens of a text.

    Args:
        path: UTF-8, a sentence a line; empty lines do not count.
        tokenizer: the checkpoint's, with its languages set.
        progress: called with the number of lines that are done.

    Returns:
        Their ids, special tokens included.

    Raises:
        InputError: the file cannot be read, or the tokenizer has no target language.
    """
    require_target_language(tokenizer)
    seen: set[int] = set()
    count = 0
    lines = _lines(path, "target")
    while chunk := list(islice(lines, CHUNK)):
        encoded = tokenizer(text_target=chunk, return_attention_mask=False, verbose=False)
        seen.update(token for ids in encoded["input_ids"] for token in ids)
        count += len(chunk)
        progress(count)
    return seen


def _lines(path: Path, language: Language) -> Iterator[str]:
    try:
        require_regular(path)  # it is read twice
        with path.open(encoding="utf-8") as file:
            yield from _texts(file)
    except OSError as error:
        raise InputError(
            f"cannot read {language} text {path}: {error.strerror}",
            id=f"{language}-text-unreadable",
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{language} text {path} is not UTF-8: {error.reason}", id=f"{language}-text-not-utf8"
        ) from error


def _texts(lines: Iterable[str]) -> Iterator[str]:
    return (text for line in lines if (text := line.strip()))
