"""An encoder with a smaller vocabulary: the tokens of texts like the user's, and short tokens.

Texts whose tokens are all kept get the same tokens and the same output, also behind each of the
model's prompts. Others are split into shorter tokens, down to single characters or bytes.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from compressor.errors import InputError, VerificationError
from compressor.export.cut_tokenizer import (
    KINDS,
    change_inserted,
    cut_file,
    kind_of,
    model_of,
    short_tokens,
    state_of,
)
from compressor.export.verify import EXPORT_TOLERANCE, relative_difference
from compressor.export.vocabulary import CHUNK
from compressor.model.checkpoint import Checkpoint
from compressor.model.modes import quiet_transformers
from compressor.model.stored_tokenizer import open_tokenizer, remember_limits
from compressor.model.token_tables import tokens_in, with_tokens
from compressor.model.tokenizer import prompts_of, save_tokenizer
from compressor.runtime.batching import in_chunks
from compressor.runtime.token_classifier import words_of
from compressor.tasks import TASKS
from compressor.tasks.batching import encode_texts
from compressor.tasks.texts import TextFile

_ANSWERED = 32  # texts whose answers are compared, or one behind each of more prompts


def cut_vocabulary(checkpoint: Checkpoint, file: TextFile) -> Checkpoint:
    """Cut an encoder's checkpoint to the tokens of a text; it shares all other weights.

    Tokens that an input has whatever its text says are kept: those of prompts, special ones …

    Args:
        checkpoint: of an encoder.
        file: texts like those that the model will read.

    Raises:
        InputError: the tokenizer cannot be reduced, or the file cannot be read.
        VerificationError: texts of the file have other tokens, or other answers, than before.
    """
    tokenizer = checkpoint.tokenizer
    kind = kind_of(tokenizer)
    if kind not in KINDS:
        raise InputError(
            f"--source-text needs a {', '.join(KINDS[:-1])} or {KINDS[-1]} tokenizer in a "
            f"tokenizer.json, and that of {checkpoint.name} is {kind}; leave it out",
            id="tokenizer-cannot-be-cut",
        )
    words = TASKS[checkpoint.task].reads_words
    prompts = prompts_of(tokenizer)
    chunks = (_ids(tokenizer, texts, words=words) for texts in served(file, prompts))
    seen = {i for rows in chunks for ids in rows for i in ids}
    seen |= {i for ids in _ids(tokenizer, prompts) for i in ids}
    kept = sorted(seen | _always_kept(checkpoint) | short_tokens(model_of(tokenizer), seen))
    smaller = _cut_tokenizer(checkpoint, kept)

    def require_same_ids(*texts: list[str], words: bool = False) -> None:
        rows = (_ids(x, *texts, words=words) for x in (tokenizer, smaller))
        for ids, new_ids in zip(*rows, strict=True):
            if ids != [kept[i] for i in new_ids]:
                raise VerificationError(
                    f"the smaller tokenizer splits a text of {file.path} with {len(ids)} tokens "
                    "differently; please report this with the checkpoint's name",
                    id="tokenizer-encodes-differently",
                )

    # The file is read again, since it may be too large to keep.
    for texts in served(file, prompts):
        require_same_ids(texts, words=words)
    some = list(islice(file.each(), max(1, _ANSWERED // len(prompts))))
    require_same_ids(some, some[::-1])  # as pairs
    cut = replace(checkpoint, model=with_tokens(checkpoint.model, kept), tokenizer=smaller)
    require_same_answers(checkpoint, cut, [f"{prompt}{x}" for prompt in prompts for x in some])
    return cut


def served(file: TextFile, prompts: Sequence[str]) -> Iterator[list[str]]:
    """Chunks of the texts, behind each prompt: a word may be cut otherwise behind another one."""
    for texts in in_chunks(file.each(), CHUNK):
        for prompt in prompts:
            yield [f"{prompt}{text}" for text in texts]


@torch.no_grad()
def require_same_answers(whole: Checkpoint, cut: Checkpoint, texts: Sequence[str]) -> None:
    """Check that an encoder with fewer tokens answers texts as the whole one; VerificationError."""

    def answers(checkpoint: Checkpoint) -> Iterator[Any]:
        types = "token_type_ids" in checkpoint.entry.inputs
        encoded, _ = encode_texts(
            checkpoint.tokenizer, checkpoint.max_source_tokens, types=types, text=list(texts)
        )
        for row in range(len(texts)):  # one by one, without padding
            inputs = {name: torch.tensor([rows[row]]) for name, rows in encoded.items()}
            mask = torch.ones_like(inputs["input_ids"])
            yield checkpoint.model(attention_mask=mask, **inputs).logits.numpy()

    pairs = zip(answers(cut), answers(whole), strict=True)
    worst = float(np.max([relative_difference(*pair) for pair in pairs]))
    if not worst <= EXPORT_TOLERANCE:  # NaN raises, too
        raise VerificationError(
            f"with the tokens of --source-text alone {whole.name} answers {worst:.2e} off (of the "
            f"largest logit, tolerance {EXPORT_TOLERANCE:.0e}) to one of those texts; please "
            "report this with the checkpoint's name",
            id="cut-vocabulary-differs",
        )


def _ids(
    tokenizer: Any, texts: list[str], pairs: list[str] | None = None, *, words: bool = False
) -> list[list[int]]:
    """Token ids of texts; with `words` also as they are where the words are read one by one."""
    options = {"return_attention_mask": False, "verbose": False}
    ids = list(tokenizer(texts, pairs, **options)["input_ids"])
    if words:
        sentences = [words_of(text) for text in texts]
        ids += tokenizer(sentences, is_split_into_words=True, **options)["input_ids"]
    return ids


def _always_kept(checkpoint: Checkpoint) -> set[int]:
    """Ids of tokens that texts need not contain.

    Special, added and configured ones, what the post-processor puts around a text or a pair, and
    those up to padding's for positions.
    """
    config: Any = checkpoint.model.config
    tokenizer: Any = checkpoint.tokenizer
    ids = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}

    def keep(token: int) -> int:
        ids.add(token)
        return token

    _, padding = getattr(tokenizer, "stored_limits", (None, None))
    change_inserted(state_of(tokenizer) | {"padding": padding}, keep)
    ids |= tokens_in(vars(config))
    ids &= set(tokenizer.get_vocab().values())  # configurations name others by default
    if checkpoint.entry.positions_after_padding:
        ids |= {*range(config.pad_token_id + 1)}  # so that its id does not change
    return ids


def _cut_tokenizer(checkpoint: Checkpoint, kept: list[int]) -> Any:
    """The tokenizer with only the kept tokens, in their order."""
    tokenizer = checkpoint.tokenizer
    with tempfile.TemporaryDirectory() as name, quiet_transformers():
        directory = Path(name)
        save_tokenizer(tokenizer, directory)
        path = directory / "tokenizer.json"
        cut_file(path, kept)
        for other in {*directory.iterdir()} - {path, directory / "tokenizer_config.json"}:
            other.unlink()  # a vocabulary in another form, with all tokens
        # A copy, not what is opened: that would lack what was set after opening, and is in no file
        # or in one that the class does not read (lower-casing, prompts, lengths, sides).
        smaller = copy.deepcopy(tokenizer)
        smaller._tokenizer = Tokenizer.from_file(str(path))
        smaller._tokenizer.encode_special_tokens = tokenizer.split_special_tokens
        remember_limits(smaller)
        opened = open_tokenizer(directory)
    wanted = dict(zip(tokenizer.convert_ids_to_tokens(kept), range(len(kept)), strict=True))
    if not smaller.get_vocab() == opened.get_vocab() == wanted:
        raise InputError(
            f"the tokenizer of {checkpoint.name} ({type(tokenizer).__name__}) cannot be loaded "
            "with fewer tokens; leave --source-text out",
            id="tokenizer-cannot-be-cut",
        )
    return smaller
