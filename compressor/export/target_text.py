"""The tokens of a text in the target language.

Marian and CTranslate2 can restrict a decoder to a short list of output words per sentence. Here the
list is made once, from text like the expected translations, and the exported decoder has no rows
for other tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compressor.runtime.batching import in_chunks
from compressor.tasks.encoder_decoder import require_target_language
from compressor.tasks.texts import TextFile

CHUNK = 2000  # texts per call of the tokenizer


def count_texts(file: TextFile, progress: Callable[[int], None] = lambda lines: None) -> int:
    """The number of texts that are not empty; a fast check of the whole file.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or has no text.
    """
    count = sum(1 for _ in file.each(progress))
    if not count:
        raise file.empty()
    return count


def tokens_of_text(
    file: TextFile, tokenizer: Any, progress: Callable[[int], None] = lambda texts: None
) -> set[int]:
    """Ids of the distinct tokens of a text, special tokens included.

    Raises:
        InputError: the file cannot be read, or the tokenizer has no target language.
    """
    require_target_language(tokenizer)
    seen: set[int] = set()
    count = 0
    for chunk in in_chunks(file.each(), CHUNK):
        # As targets, for which Marian's tokenizer has another model than for sources.
        encoded = tokenizer(text_target=chunk, return_attention_mask=False, verbose=False)
        seen.update(token for ids in encoded["input_ids"] for token in ids)
        count += len(chunk)
        progress(count)
    return seen
