"""Tokenizers that are Python around SentencePiece, with fewer tokens: Marian's and M2M100's.

SentencePiece takes the best segmentation of a text: where its pieces are kept, it stays the best.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compressor.export.cut_tokenizer import short_tokens
from compressor.export.tokenizer import build_tokenizer
from compressor.export.vocabulary import is_short
from compressor.model.tokenizer import read_sentencepiece
from compressor.storage.files import write_json

MARIAN, M2M100 = "MarianTokenizer", "M2M100Tokenizer"
VOCABULARY, TARGETS = "vocab.json", "target_vocab.json"
_PIECES = {MARIAN: ("source.spm", "target.spm"), M2M100: ("sentencepiece.bpe.model",)}


def spelling_tokens(tokenizer: Any, seen: Collection[int], *, target: bool = False) -> set[int]:
    """Find single characters and bytes, and what the tokens of a text are built from.

    Args:
        tokenizer: of Marian or M2M100.
        seen: ids of the tokens of texts.
        target: of the target's vocabulary, where it is another one.

    Returns:
        Their ids. Those of M2M100's languages are among them: its class numbers these behind all
        other tokens, and cannot do without any.
    """
    if type(tokenizer).__name__ == M2M100:
        # As merges, of which there are the same tokens.
        model = json.loads(build_tokenizer(tokenizer).to_str())["model"]
        return short_tokens(model, seen) | {*tokenizer.lang_token_to_id.values()}
    ids = tokenizer.target_encoder if target else tokenizer.encoder
    return {i for piece, i in ids.items() if is_short(piece)}


def unknown_pieces(tokenizer: Any, texts: Iterable[str], *, target: bool = False) -> set[str]:
    """Pieces of some texts that the vocabulary of a Marian tokenizer has no token for."""
    ids = tokenizer.target_encoder if target and tokenizer.separate_vocabs else tokenizer.encoder
    if target:
        tokenizer._switch_to_target_mode()
    try:
        found = {piece for text in texts for piece in tokenizer.tokenize(text)}
    finally:
        tokenizer._switch_to_input_mode()
    return found - ids.keys()


def cut_files(
    tokenizer: Any,
    directory: Path,
    sources: Sequence[int],
    targets: Sequence[int],
    more: Sequence[Collection[str]],
) -> None:
    """Cut the vocabularies and models of a saved tokenizer, in place.

    Args:
        tokenizer: that was saved.
        directory: with its files.
        sources: ids that are kept, ascending; new ids are their places here.
        targets: those of the target's vocabulary; the same, unless it is another one.
        more: pieces without a token that the source's and the target's model keep.
    """
    name = type(tokenizer).__name__
    vocabularies = {VOCABULARY: _kept(tokenizer.encoder, sources)}
    of_models = [vocabularies[VOCABULARY]] * len(_PIECES[name])
    if getattr(tokenizer, "separate_vocabs", False):
        vocabularies[TARGETS] = _kept(tokenizer.target_encoder, targets)
        of_models[1] = vocabularies[TARGETS]
    for file, tokens in vocabularies.items():
        write_json(directory / file, tokens)
    for file, tokens, others in zip(_PIECES[name], of_models, more, strict=False):
        cut_model(directory / file, {*tokens, *others})


def _kept(ids: Mapping[str, int], kept: Sequence[int]) -> dict[str, int]:
    tokens = {i: token for token, i in ids.items()}
    return {tokens[old]: new for new, old in enumerate(kept) if old in tokens}


def cut_model(path: Path, kept: Collection[str]) -> None:
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
