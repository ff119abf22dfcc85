"""A translator for one pair of languages: the tokens of texts in both, and short tokens.

Texts whose tokens are all kept get the same tokens, and the translations that the whole model gives
with these tokens alone. Others are split into shorter tokens, down to single characters or bytes.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compressor.errors import InputError, VerificationError
from compressor.export import cut_sentencepiece
from compressor.export.cut_tokenizer import (
    KINDS,
    change_inserted,
    cut_file,
    cut_settings,
    kind_of,
    model_of,
    short_tokens,
    state_of,
)
from compressor.export.source_text import served
from compressor.export.vocabulary import tokens_of_text
from compressor.model.checkpoint import Checkpoint
from compressor.model.languages import kept_languages, languages
from compressor.model.modes import quiet_transformers
from compressor.model.stored_tokenizer import open_tokenizer
from compressor.model.token_tables import shares_tables, tokens_in, with_tokens
from compressor.model.tokenizer import prompts_of, reopened, save_tokenizer, target_ids
from compressor.tasks.texts import TARGET, TextFile

_KINDS = (*KINDS, cut_sentencepiece.MARIAN, cut_sentencepiece.M2M100)
_FILES = {"tokenizer.json", "tokenizer_config.json"}  # of a fast tokenizer


@dataclass(frozen=True)
class PairTokens:
    """Ids of tokens that are kept, ascending; new ids are their places here."""

    sources: list[int]
    targets: list[int]  # the same list, unless the target has a vocabulary of its own


def cut_pair(
    checkpoint: Checkpoint, source: TextFile, target: TextFile, asked: Collection[str] = ()
) -> tuple[Checkpoint, PairTokens]:
    """Cut an encoder-decoder to the tokens of texts in two languages.

    Special tokens stay, tokens that settings name, and the codes of the run's languages.

    Args:
        checkpoint: of an encoder-decoder, with its languages set; its other weights are shared.
        source: texts like those that it will read.
        target: texts like those that it will write.
        asked: codes of further languages to keep.

    Returns:
        The smaller checkpoint, and which of the tokens it has.

    Raises:
        InputError: the tokenizer cannot be reduced, or a file cannot be read.
        UsageError: it has no such language.
        VerificationError: texts of the files have other tokens than before.
    """
    tokenizer = checkpoint.tokenizer
    kind = kind_of(tokenizer)
    if kind not in _KINDS:
        raise InputError(
            f"--source-text needs a tokenizer.json, or the tokenizer of Marian or M2M100, and that "
            f"of {checkpoint.name} is {kind}; leave --source-text out",
            id="tokenizer-cannot-be-cut",
        )
    codes = kept_languages(tokenizer, asked, checkpoint.name)
    prompts = prompts_of(tokenizer)
    read = {i for texts in served(source, prompts) for ids in _ids(tokenizer, texts) for i in ids}
    written = tokens_of_text(target, tokenizer)
    unknown: list[set[str]] = [set(), set()]
    if kind == cut_sentencepiece.MARIAN:
        for place, seen in enumerate((read, written)):
            if tokenizer.unk_token_id in seen:
                chunks = served(target, [""]) if place else served(source, prompts)
                unknown[place] = cut_sentencepiece.unknown_pieces(
                    tokenizer, (x for texts in chunks for x in texts), target=bool(place)
                )
    kept = _kept(checkpoint, read, written, codes)
    smaller = _cut_tokenizer(checkpoint, kept, unknown)
    # The files are read again, since they may be too large to keep.
    for texts in served(source, prompts):
        _require_same_ids(tokenizer, smaller, texts, kept.sources, source)
    for texts in served(target, [""]):
        _require_same_ids(tokenizer, smaller, texts, kept.targets, target)
    model = with_tokens(checkpoint.model, kept.sources, kept.targets)
    return replace(checkpoint, model=model, tokenizer=smaller), kept


def _ids(tokenizer: Any, texts: list[str], *, target: bool = False) -> list[list[int]]:
    columns = {"text_target" if target else "text": texts}
    encoded = tokenizer(**columns, return_attention_mask=False, verbose=False)
    return list(encoded["input_ids"])


def _require_same_ids(
    whole: Any, smaller: Any, texts: list[str], kept: Sequence[int], file: TextFile
) -> None:
    target = file.option == TARGET
    rows = (_ids(tokenizer, texts, target=target) for tokenizer in (whole, smaller))
    for ids, new_ids in zip(*rows, strict=True):
        if ids != [kept[i] for i in new_ids]:
            raise VerificationError(
                f"the smaller tokenizer splits a text of {file.path} with {len(ids)} tokens "
                "differently; please report this with the checkpoint's name",
                id="tokenizer-encodes-differently",
            )


def _kept(
    checkpoint: Checkpoint, read: Collection[int], written: Collection[int], codes: Collection[int]
) -> PairTokens:
    tokenizer = checkpoint.tokenizer
    always = _always_kept(checkpoint) | {*codes}
    if not getattr(tokenizer, "separate_vocabs", False):
        seen = {*read, *written}
        spelled = (
            short_tokens(model_of(tokenizer), seen)
            if tokenizer.is_fast
            else cut_sentencepiece.spelling_tokens(tokenizer, seen)
        )
        both = sorted(seen | spelled | always)
        return PairTokens(both, both)
    if shares_tables(checkpoint.model):
        raise InputError(
            f"the tokenizer of {checkpoint.name} has a vocabulary for each side, and its model one "
            "table of embeddings for both; leave --source-text out",
            id="tokenizer-cannot-be-cut",
        )
    known = [{*tokenizer.get_vocab().values()}, {*target_ids(tokenizer).values()}]
    sides = [
        known[target]
        & ({*seen} | cut_sentencepiece.spelling_tokens(tokenizer, seen, target=target) | always)
        for seen, target in ((read, False), (written, True))
    ]
    return _balanced(sides, known, always & known[0] & known[1], checkpoint.name)


def _balanced(
    sides: Sequence[set[int]], known: Sequence[set[int]], shared: Collection[int], name: str
) -> PairTokens:
    """Keep more tokens, so that those with one id in both vocabularies have one id again.

    Args:
        sides: ids that are kept of the source's vocabulary, and of the target's.
        known: all ids of each.
        shared: ids in both that settings name, such as padding.
        name: of the checkpoint, for the message.

    Raises:
        InputError: there are not enough tokens.
    """
    kept, last = [{*side} for side in sides], -1
    for token in sorted(shared):
        between = [{i for i in side if last < i < token} for side in kept]
        most = max(map(len, between))
        for side, found, ids in zip(kept, between, known, strict=True):
            spare = sorted(i for i in ids - side if last < i < token)
            missing = most - len(found)
            if len(spare) < missing:
                raise InputError(
                    f"the two vocabularies of {name} cannot be cut so that token {token:,} has one "
                    "number in both; leave --source-text out",
                    id="tokenizer-cannot-be-cut",
                )
            side |= {*spare[:missing]}
        last = token
    return PairTokens(*map(sorted, kept))


def _always_kept(checkpoint: Checkpoint) -> set[int]:
    """Ids of tokens that texts need not contain: special, added and configured ones.

    But for codes of languages, unless the tokenizer's class lists them: it then adds their tokens
    whenever it is opened.
    """
    model: Any = checkpoint.model
    tokenizer: Any = checkpoint.tokenizer
    known, listed = languages(tokenizer), getattr(tokenizer, "lang_code_to_id", {})
    codes = {i for code, i in known.items() if code not in listed}
    ids = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder, *known.values()} - codes
    ids |= tokens_in(vars(model.config))

    def keep(token: int) -> int:
        ids.add(token)
        return token

    if tokenizer.is_fast:
        _, padding = getattr(tokenizer, "stored_limits", (None, None))
        change_inserted(state_of(tokenizer) | {"padding": padding}, keep)
    positions = getattr(model.get_encoder(), "embed_positions", None)
    if hasattr(positions, "weights"):  # M2M100 counts them from the id of padding on
        ids |= {*range(model.config.pad_token_id + 1)}
    vocabulary = {*tokenizer.get_vocab().values(), *known.values()}
    vocabulary |= {*target_ids(tokenizer).values()}
    needed = tokens_in(vars(model.generation_config))
    if not needed <= vocabulary:
        raise InputError(
            f"generation_config.json of {checkpoint.name} names token "
            f"{min(needed - vocabulary):,}, which its tokenizer does not have; correct it, or "
            "leave --source-text out",
            id="tokenizer-cannot-be-cut",
        )
    return (ids & vocabulary) | needed  # configurations name others by default


def _cut_tokenizer(
    checkpoint: Checkpoint, kept: PairTokens, unknown: Sequence[Collection[str]]
) -> Any:
    """The tokenizer with only the kept tokens, opened from files as they will be saved."""
    tokenizer = checkpoint.tokenizer
    folder = tempfile.TemporaryDirectory(prefix="compress-")
    directory = Path(folder.name)
    tokens = tokenizer.convert_ids_to_tokens(kept.sources)
    with quiet_transformers():
        save_tokenizer(tokenizer, directory)
        if tokenizer.is_fast:
            cut_file(directory / "tokenizer.json", kept.sources)
            for path in directory.iterdir():
                if path.name not in _FILES:
                    path.unlink()  # a vocabulary in another form, with all tokens
        else:
            cut_sentencepiece.cut_files(tokenizer, directory, kept.sources, kept.targets, unknown)
        cut_settings(directory / "tokenizer_config.json", kept.sources, tokens)
        smaller = reopened(tokenizer, open_tokenizer(directory, writes=True))
    # One that is Python reads its files again, so they stay as long as it does.
    weakref.finalize(smaller, folder.cleanup)
    if hasattr(tokenizer, "difference"):
        smaller.difference = tokenizer.difference
    whole = (tokenizer.get_vocab() | languages(tokenizer), target_ids(tokenizer))
    cut = (smaller.get_vocab() | languages(smaller), target_ids(smaller))
    for ids, old, new in zip((kept.sources, kept.targets), whole, cut, strict=True):
        numbers = {token: number for number, token in enumerate(ids)}
        if new != {token: numbers[i] for token, i in old.items() if i in numbers}:
            raise InputError(
                f"the tokenizer of {checkpoint.name} ({type(tokenizer).__name__}) cannot be loaded "
                "with fewer tokens; leave --source-text out",
                id="tokenizer-cannot-be-cut",
            )
    return smaller
