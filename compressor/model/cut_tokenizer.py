"""A tokenizer with fewer tokens: what its files consist of, and how they are cut.

Fast tokenizers have all in a `tokenizer.json`. Those of Marian and M2M100 are Python around
SentencePiece, which takes the best segmentation of a text: where its pieces are kept, it stays the
best.
"""

from __future__ import annotations

import copy
import json
import tempfile
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from compressor.errors import InputError
from compressor.model.checkpoint import Checkpoint
from compressor.model.kept_tokens import (
    M2M100,
    MARIAN,
    KeptIds,
    change_inserted,
    is_short,
    merges_of,
)
from compressor.model.modes import quiet_transformers
from compressor.model.stored_tokenizer import open_tokenizer, remember_limits
from compressor.model.tokenizer import (
    read_sentencepiece,
    reopened,
    save_tokenizer,
    tokens_by_side,
)

_VOCABULARY, _TARGETS = "vocab.json", "target_vocab.json"
_PIECES = {MARIAN: ("source.spm", "target.spm"), M2M100: ("sentencepiece.bpe.model",)}
_JSON, _SETTINGS = "tokenizer.json", "tokenizer_config.json"  # the files of a fast tokenizer


def cut_tokenizer(
    checkpoint: Checkpoint, kept: KeptIds, unknown: Sequence[Collection[str]] = ((), ())
) -> Any:
    """The tokenizer of a checkpoint with only the kept tokens, in their order.

    It is saved, cut in its files, and opened again.

    Args:
        checkpoint: whose tokenizer stays as it is.
        kept: which tokens.
        unknown: pieces without a token that the source's and the target's model of SentencePiece
            keep, so that a text is split as before.

    Raises:
        InputError: its class does not open the files, or adds tokens.
    """
    tokenizer, writes = checkpoint.tokenizer, checkpoint.entry.decoder is not None
    folder = tempfile.TemporaryDirectory(prefix="compress-")
    directory = Path(folder.name)
    with quiet_transformers():
        save_tokenizer(tokenizer, directory)
        if tokenizer.is_fast:
            _cut_json(directory / _JSON, kept.sources)
            for path in directory.iterdir():
                if path.name not in (_JSON, _SETTINGS):
                    path.unlink()  # a vocabulary in another form, with all tokens
        else:
            _cut_sentencepiece(tokenizer, directory, kept, unknown)
        tokens = tokenizer.convert_ids_to_tokens(kept.sources)
        _cut_settings(directory / _SETTINGS, kept.sources, tokens)
        opened = open_tokenizer(directory, writes=writes)
        smaller = reopened(tokenizer, opened) if writes else _copy(tokenizer, directory / _JSON)
    # One that is Python reads its files again, so they stay as long as it does.
    weakref.finalize(smaller, folder.cleanup)
    if hasattr(tokenizer, "difference"):
        smaller.difference = tokenizer.difference
    whole = tokens_by_side(tokenizer)
    numbers = [{old: new for new, old in enumerate(ids)} for ids in (kept.sources, kept.targets)]
    wanted = tuple(
        {token: new[i] for token, i in ids.items() if i in new}
        for ids, new in zip(whole, numbers, strict=True)
    )
    if not tokens_by_side(smaller) == tokens_by_side(opened) == wanted:
        raise InputError(
            f"the tokenizer of {checkpoint.name} ({type(tokenizer).__name__}) cannot be loaded "
            "with fewer tokens; leave --source-text out",
            id="tokenizer-cannot-be-cut",
        )
    return smaller


def _copy(tokenizer: Any, path: Path) -> Any:
    """A copy of a fast tokenizer that has the tokens of a `tokenizer.json`.

    What is opened would lack what was set after opening, and is in no file or in one that the class
    does not read: lower-casing, prompts, lengths, sides.
    """
    smaller = copy.deepcopy(tokenizer)
    smaller._tokenizer = Tokenizer.from_file(str(path))
    smaller._tokenizer.encode_special_tokens = tokenizer.split_special_tokens
    remember_limits(smaller)
    return smaller


def _cut_json(path: Path, kept: Sequence[int]) -> None:
    """Cut a `tokenizer.json`, in place; added tokens may be gone if nothing inserts them."""
    data = json.loads(path.read_text(encoding="utf-8"))
    numbers = {old: new for new, old in enumerate(kept)}
    model = data["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [entry for i, entry in enumerate(model["vocab"]) if i in numbers]
        if model["unk_id"] is not None:
            model["unk_id"] = numbers[model["unk_id"]]
    else:
        model["vocab"] = {x: numbers[i] for x, i in model["vocab"].items() if i in numbers}
    if model["type"] == "BPE":
        # As pairs: in the older form, `a b`, a piece cannot contain a space.
        model["merges"] = [
            list(pair)
            for pair, (_, merged) in sorted(merges_of(model).items(), key=lambda item: item[1][0])
            if {*pair, merged} <= model["vocab"].keys()
        ]
    data["added_tokens"] = [
        {**token, "id": numbers[token["id"]]}
        for token in data["added_tokens"]
        if token["id"] in numbers
    ]
    change_inserted(data, numbers.__getitem__)
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def _cut_settings(path: Path, kept: Sequence[int], tokens: Collection[str]) -> None:
    """Cut a `tokenizer_config.json`, in place: added tokens, and those that are special.

    Args:
        path: the file.
        kept: ids, ascending; new ids are their places here.
        tokens: the kept ones as text.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    numbers = {old: new for new, old in enumerate(kept)}
    for name in ("extra_special_tokens", "additional_special_tokens"):
        if isinstance(data.get(name), list):
            texts = [x["content"] if isinstance(x, dict) else x for x in data[name]]
            both = zip(data[name], texts, strict=True)
            data[name] = [token for token, text in both if text in tokens]
    added = data.get("added_tokens_decoder")
    if added is not None:
        data["added_tokens_decoder"] = {
            str(numbers[int(i)]): token for i, token in added.items() if int(i) in numbers
        }
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def _cut_sentencepiece(
    tokenizer: Any, directory: Path, kept: KeptIds, unknown: Sequence[Collection[str]]
) -> None:
    """Cut the vocabularies and models of a saved tokenizer of Marian or M2M100, in place."""
    name = type(tokenizer).__name__
    vocabularies = {_VOCABULARY: _numbered(tokenizer.encoder, kept.sources)}
    of_models = [vocabularies[_VOCABULARY]] * len(_PIECES[name])
    if getattr(tokenizer, "separate_vocabs", False):
        vocabularies[_TARGETS] = _numbered(tokenizer.target_encoder, kept.targets)
        of_models[1] = vocabularies[_TARGETS]
    for file, tokens in vocabularies.items():
        text = json.dumps(tokens, ensure_ascii=False)
        (directory / file).write_text(text, encoding="utf-8")
    for file, tokens, others in zip(_PIECES[name], of_models, unknown, strict=False):
        _cut_model(directory / file, {*tokens, *others})


def _numbered(ids: Mapping[str, int], kept: Sequence[int]) -> dict[str, int]:
    tokens = {i: token for token, i in ids.items()}
    return {tokens[old]: new for new, old in enumerate(kept) if old in tokens}


def _cut_model(path: Path, kept: Collection[str]) -> None:
    """Leave out pieces of a SentencePiece model, in place.

    Args:
        path: of the model.
        kept: pieces; those that are no ordinary ones stay, too. Of a Unigram model also single
            characters, and those with the lowest and the highest score: the scores of unknown
            characters and of pieces that users defined depend on these.
    """
    model = read_sentencepiece(path)
    kinds, trainer = model.SentencePiece, model.trainer_spec
    normal = [piece for piece in model.pieces if piece.type == kinds.NORMAL]
    stay = {*kept}
    if trainer.model_type == trainer.UNIGRAM:
        by_score = sorted(normal, key=lambda piece: float(piece.score))
        stay |= {piece.piece for piece in (*by_score[:1], *by_score[-1:])}
        stay |= {piece.piece for piece in normal if is_short(piece.piece)}
    pieces = [x for x in model.pieces if x.type != kinds.NORMAL or x.piece in stay]
    # A new one, without the texts for a self-test: their pieces may be gone, and it would fail.
    made = type(model)(pieces=pieces)
    for part in ("trainer_spec", "normalizer_spec", "denormalizer_spec"):
        if model.HasField(part):
            getattr(made, part).CopyFrom(getattr(model, part))
    made.trainer_spec.vocab_size = len(pieces)
    path.write_bytes(made.SerializeToString())
