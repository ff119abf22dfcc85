"""Which tokens a smaller vocabulary keeps: those of texts, what any text gets, and short ones.

Texts whose tokens are all kept get the same tokens. Others are split into shorter tokens, down to
single characters or bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from compressor.errors import InputError
from compressor.model.checkpoint import Checkpoint
from compressor.model.languages import kept_languages
from compressor.model.token_tables import shares_tables, tokens_in
from compressor.model.tokenizer import read_sentencepiece, tokens_by_side

KINDS = ("WordPiece", "Unigram", "BPE")
MARIAN, M2M100 = "MarianTokenizer", "M2M100Tokenizer"
Merges = dict[tuple[str, str], tuple[int, str]]
_BYTE = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class KeptIds:
    """Ids of tokens that are kept, ascending; new ids are their places here."""

    sources: list[int]
    targets: list[int]  # the same list, unless the target has a vocabulary of its own


def require_cuttable(checkpoint: Checkpoint, languages: Collection[str] = ()) -> None:
    """Check, before texts are read, that a checkpoint can be left with fewer tokens.

    Args:
        checkpoint: with its languages set.
        languages: codes of a translator's further languages to keep.

    Raises:
        InputError: its tokenizer cannot be reduced, or its files contradict each other.
        UsageError: it has no such language.
    """
    _require_kind(checkpoint)
    name, tokenizer = checkpoint.name, checkpoint.tokenizer
    known = set[int]().union(*(ids.values() for ids in tokens_by_side(tokenizer)))
    if unknown := _named_by_generation(checkpoint) - known:
        raise InputError(
            f"generation_config.json of {name} names token {min(unknown):,}, which its tokenizer "
            "does not have; correct it, or leave --source-text out",
            id="tokenizer-cannot-be-cut",
        )
    if getattr(tokenizer, "separate_vocabs", False) and shares_tables(checkpoint.model):
        raise InputError(
            f"the tokenizer of {name} has a vocabulary for each side, and its model one table of "
            "embeddings for both; leave --source-text out",
            id="tokenizer-cannot-be-cut",
        )
    if checkpoint.entry.decoder is not None:
        kept_languages(tokenizer, languages, name)


def _require_kind(checkpoint: Checkpoint) -> None:
    kind, kinds = _kind_of(checkpoint.tokenizer), [*KINDS]
    wanted = f"a {', '.join(KINDS[:-1])} or {KINDS[-1]} tokenizer in a tokenizer.json"
    if checkpoint.entry.decoder is not None:
        kinds += [MARIAN, M2M100]
        wanted = "a tokenizer.json, or the tokenizer of Marian or M2M100"
    if kind not in kinds:
        raise InputError(
            f"--source-text needs {wanted}, and that of {checkpoint.name} is {kind}; leave "
            "--source-text out",
            id="tokenizer-cannot-be-cut",
        )


def tokens_to_keep(
    checkpoint: Checkpoint, seen: Sequence[Collection[int]], languages: Collection[str] = ()
) -> KeptIds:
    """Find the tokens that a checkpoint keeps.

    Those of texts, what these can be spelled with, and what a text gets whatever it says: special
    tokens, tokens that settings name, the codes of the run's languages.

    Args:
        checkpoint: with its languages set; for which `require_cuttable` found nothing.
        seen: ids of the tokens of texts that it will read; and of an encoder-decoder, of texts that
            it will write.
        languages: codes of a translator's further languages to keep.

    Raises:
        InputError: the tokens do not go together.
    """
    model: Any = checkpoint.model
    tokenizer: Any = checkpoint.tokenizer
    known = [{*ids.values()} for ids in tokens_by_side(tokenizer)]
    stay, spare = set[int](), set[int]()
    if checkpoint.entry.decoder is not None:
        stay, spare = kept_languages(tokenizer, languages, checkpoint.name)
    needed, named = _named_by_generation(checkpoint), tokens_in(vars(model.config))
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder} - spare
    always = special | named | _inserted_tokens(tokenizer)
    always &= known[0] | known[1]  # configurations name others by default
    always |= {*stay, *needed, *_before_padding(checkpoint)}
    if not getattr(tokenizer, "separate_vocabs", False):
        both = set[int]().union(*seen)
        ids = sorted(both | _spelling_tokens(tokenizer, both) | always)
        return KeptIds(ids, ids)
    sides = [
        known[side] & ({*ids} | _spelling_tokens(tokenizer, ids, target=bool(side)) | always)
        for side, ids in enumerate(seen)
    ]
    shared = always & known[0] & known[1]
    sources, targets = _balanced(sides, known, shared, checkpoint.name)
    return KeptIds(sources, targets)


def _named_by_generation(checkpoint: Checkpoint) -> set[int]:
    """Tokens that the settings of an encoder-decoder's search name."""
    model: Any = checkpoint.model
    writes = checkpoint.entry.decoder is not None
    return tokens_in(vars(model.generation_config)) if writes else set()


def _before_padding(checkpoint: Checkpoint) -> range:
    """Tokens up to padding's, where positions are counted from its id on, which must not change."""
    model: Any = checkpoint.model
    counted = checkpoint.entry.positions_after_padding
    if checkpoint.entry.decoder is not None:  # as M2M100 does
        counted = hasattr(getattr(model.get_encoder(), "embed_positions", None), "weights")
    return range(model.config.pad_token_id + 1 if counted else 0)


def _kind_of(tokenizer: Any) -> str:
    """One of `KINDS`, or the class of a tokenizer that is Python code."""
    kind = _state(tokenizer)["model"]["type"] if tokenizer.is_fast else type(tokenizer).__name__
    return str(kind)


def _state(tokenizer: Any) -> Any:
    """The contents of the `tokenizer.json` of a fast tokenizer."""
    return json.loads(tokenizer.backend_tokenizer.to_str())


def _inserted_tokens(tokenizer: Any) -> set[int]:
    """Ids of the tokens that a fast tokenizer puts around a text or a pair, and of padding."""
    ids = set[int]()
    if tokenizer.is_fast:
        _, padding = getattr(tokenizer, "stored_limits", (None, None))

        def found(token: int) -> int:
            ids.add(token)
            return token

        change_inserted(_state(tokenizer) | {"padding": padding}, found)
    return ids


def _spelling_tokens(tokenizer: Any, seen: Collection[int], *, target: bool = False) -> set[int]:
    """Find single characters and bytes, and what the tokens of a text are built from.

    Args:
        tokenizer: of a kind in `KINDS`, of Marian or of M2M100.
        seen: ids of the tokens of texts.
        target: of the target's vocabulary, where it is another one.

    Returns:
        Their ids. Those of M2M100's languages are among them: its class numbers these behind all
        other tokens, and cannot do without any.
    """
    if tokenizer.is_fast:
        return _short_tokens(_state(tokenizer)["model"], seen)
    if type(tokenizer).__name__ == M2M100:
        return _short_tokens(_bpe_model(tokenizer), seen) | {*tokenizer.lang_token_to_id.values()}
    ids = tokenizer.target_encoder if target else tokenizer.encoder
    return {i for piece, i in ids.items() if is_short(piece)}


def _short_tokens(model: dict[str, Any], seen: Collection[int]) -> set[int]:
    """`_spelling_tokens` of the model of a `tokenizer.json`.

    WordPiece takes the longest token that matches, which is kept. Unigram maximizes the sum of
    scores; that of unknown characters depends on the lowest, whose token is kept. BPE merges pairs
    in the order of its list: all parts of a kept token are kept.
    """
    if model["type"] == "Unigram":
        pieces, scores = zip(*model["vocab"], strict=True)
        kept = {i for i, piece in enumerate(pieces) if is_short(piece)}
        return (kept | {scores.index(min(scores)), model["unk_id"]}) - {None}
    prefix, ids = model.get("continuing_subword_prefix") or "", model["vocab"]
    kept = {
        i for x, i in ids.items() if is_short(x.removeprefix(prefix)) or x == model["unk_token"]
    }
    if model["type"] == "BPE":
        merges = merges_of(model)
        parts = {y for x, i in ids.items() if i in seen for y in _parts(x, merges, model)}
        kept |= {ids[part] for part in parts if part in ids}
    return kept


def _bpe_model(tokenizer: Any) -> dict[str, Any]:
    """The SentencePiece model of M2M100 as a `tokenizer.json` has it; merges make its tokens."""
    from transformers.tokenization_utils_base import generate_merges

    ids, found = tokenizer.encoder, read_sentencepiece(Path(tokenizer.spm_file))
    scores = {p.piece: p.score for p in found.pieces if p.type == p.NORMAL and p.piece in ids}
    merges = generate_merges({piece: ids[piece] for piece in scores}, scores)
    affixes = dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"))
    unknown = tokenizer.unk_token
    return {"type": "BPE", "vocab": ids, "merges": merges, "unk_token": unknown, **affixes}


def is_short(piece: str) -> bool:
    """Whether a piece is one character or byte, with or without a mark of a word's start or end."""
    letters = piece.strip("\u2581\u0120").removesuffix("</w>")
    return len(letters) <= 1 or _BYTE.fullmatch(piece) is not None


def merges_of(model: dict[str, Any]) -> Merges:
    """Pair -> its number in the list of merges, and what it is merged to."""
    prefix = model["continuing_subword_prefix"] or ""
    pairs = (x.split(" ") if isinstance(x, str) else x for x in model["merges"])
    return {(a, b): (rank, a + b.removeprefix(prefix)) for rank, (a, b) in enumerate(pairs)}


def _parts(piece: str, merges: Merges, model: dict[str, Any]) -> set[str]:
    """All tokens that a token is merged from, including itself."""
    suffix, prefix = model["end_of_word_suffix"] or "", model["continuing_subword_prefix"] or ""
    letters = [*piece.removeprefix(prefix).removesuffix(suffix)]
    # Each letter is a symbol; letters that do not begin a word have the prefix.
    first = 0 if prefix and piece.startswith(prefix) else 1
    symbols = [*letters[:first], *(prefix + letter for letter in letters[first:])]
    if suffix and piece.endswith(suffix) and symbols:
        symbols[-1] += suffix
    parts = {piece, *symbols}
    while pairs := [(merges[x], i) for i, x in enumerate(pairwise(symbols)) if x in merges]:
        # As in the tokenizer: the first merge of the list, at its leftmost position.
        (_, merged), i = min(pairs)
        symbols[i : i + 2] = [merged]
        parts.add(merged)
    return parts


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


def change_inserted(data: dict[str, Any], change: Callable[[int], int]) -> None:
    """Change the ids that a `tokenizer.json` inserts beside a text's own, in place."""
    if data["padding"] is not None:
        data["padding"]["pad_id"] = change(data["padding"]["pad_id"])
    processors = [data["post_processor"] or {"type": None}]
    for processor in processors:  # it grows by inner ones
        processors += processor.get("processors", ())
        if processor["type"] == "TemplateProcessing":
            for token in processor["special_tokens"].values():
                token["ids"] = [change(i) for i in token["ids"]]
        elif processor["type"] in ("BertProcessing", "RobertaProcessing"):
            for name in ("sep", "cls"):
                token, i = processor[name]
                processor[name] = [token, change(i)]


def _balanced(
    sides: Sequence[set[int]], known: Sequence[set[int]], shared: Collection[int], name: str
) -> Iterator[list[int]]:
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
    return map(sorted, kept)
