"""A `tokenizer.json` with a part of its tokens, renumbered.

If all tokens of a text are kept, the text is tokenized as before:

- WordPiece takes the longest matching token, which is kept.
- Unigram maximizes the sum of scores. The score of unknown characters depends on the lowest score,
  whose token is kept.
- BPE merges pairs in the order of its list. All parts of a kept token are kept, and all merges of
  kept tokens; such a text uses no other merges.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from compressor.errors import InputError
from compressor.export.vocabulary import is_short

KINDS = ("WordPiece", "Unigram", "BPE")
Pair = tuple[str, str]


def require_kind(tokenizer: Any, name: str) -> None:
    """Check that a tokenizer can be reduced.

    Args:
        name: of its checkpoint, for the message.

    Raises:
        InputError: it has no subword model, or is not from a `tokenizer.json`.
    """
    kind = _model(tokenizer)["type"] if tokenizer.is_fast else type(tokenizer).__name__
    if kind not in KINDS:
        raise InputError(
            f"--source-text needs a {', '.join(KINDS[:-1])} or {KINDS[-1]} tokenizer in a "
            f"tokenizer.json, and that of {name} is a {kind}; leave it out",
            id="tokenizer-cannot-be-cut",
        )


def short_tokens(tokenizer: Any, seen: Collection[int]) -> set[int]:
    """Ids of single characters and bytes, and of tokens needed to build those of a text.

    Args:
        seen: ids of the text's tokens.
    """
    model = _model(tokenizer)
    prefix = model.get("continuing_subword_prefix") or ""
    vocabulary = _numbered(model)
    kept = {i for piece, i in vocabulary.items() if is_short(piece.removeprefix(prefix))}
    if model["type"] == "Unigram":
        scores = [score for _, score in model["vocab"]]
        # A Unigram model may have no unknown token: its id is then None.
        return (kept | {scores.index(min(scores)), model["unk_id"]}) - {None}
    kept |= {i for piece, i in vocabulary.items() if piece == model["unk_token"]}
    if model["type"] == "BPE":
        ranks = {pair: rank for rank, pair in enumerate(_merges(model))}
        names = {i: piece for piece, i in vocabulary.items()}
        pieces = [names[i] for i in seen if i in names]
        parts = {part for piece in pieces for part in _parts(piece, ranks, model)}
        kept |= {vocabulary[part] for part in parts if part in vocabulary}
    return kept


def cut_file(path: Path, kept: Sequence[int]) -> None:
    """Keep some tokens of a `tokenizer.json`; their new ids are their positions in `kept`.

    Args:
        kept: ids, ascending; all added tokens are among them.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    numbers = {old: new for new, old in enumerate(kept)}
    model = data["model"]
    left = {piece: numbers[i] for piece, i in _numbered(model).items() if i in numbers}
    if model["type"] == "Unigram":
        model["vocab"] = [entry for i, entry in enumerate(model["vocab"]) if i in numbers]
        if model["unk_id"] is not None:
            model["unk_id"] = numbers[model["unk_id"]]
    else:
        model["vocab"] = left
    if model["type"] == "BPE":
        # As pairs: in the older form, `a b`, a piece cannot contain a space.
        model["merges"] = [
            list(pair) for pair in _merges(model) if {*pair, _merged(pair, model)} <= left.keys()
        ]
    for token in data["added_tokens"]:
        token["id"] = numbers[token["id"]]
    if data["padding"] is not None:
        data["padding"]["pad_id"] = numbers[data["padding"]["pad_id"]]
    _renumber(data["post_processor"], numbers)
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def _model(tokenizer: Any) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    return model


def _numbered(model: dict[str, Any]) -> dict[str, int]:
    """Piece -> id."""
    if model["type"] == "Unigram":
        return {piece: i for i, (piece, _) in enumerate(model["vocab"])}
    vocabulary: dict[str, int] = model["vocab"]
    return vocabulary


def _merges(model: dict[str, Any]) -> Iterable[Pair]:
    for merge in model["merges"]:
        first, second = merge.split(" ") if isinstance(merge, str) else merge
        yield first, second


def _merged(pair: Pair, model: dict[str, Any]) -> str:
    return pair[0] + pair[1].removeprefix(model["continuing_subword_prefix"] or "")


def _parts(piece: str, ranks: dict[Pair, int], model: dict[str, Any]) -> set[str]:
    """All tokens that a token is merged from, including itself."""
    suffix, prefix = model["end_of_word_suffix"] or "", model["continuing_subword_prefix"] or ""
    ends = bool(suffix) and piece.endswith(suffix)
    continues = bool(prefix) and piece.startswith(prefix)
    letters = [*piece.removeprefix(prefix).removesuffix(suffix)]
    # Each letter is a symbol; letters that do not begin a word have the prefix.
    first = 0 if continues else 1
    symbols = [*letters[:first], *(prefix + letter for letter in letters[first:])]
    if ends and symbols:
        symbols[-1] += suffix
    parts = {piece, *symbols}
    while len(symbols) > 1:
        pairs = [(ranks.get(pair, len(ranks)), i) for i, pair in enumerate(pairwise(symbols))]
        # As in the tokenizer: the first merge of the list, at its leftmost position.
        rank, i = min(pairs)
        if rank == len(ranks):
            break
        symbols[i : i + 2] = [_merged((symbols[i], symbols[i + 1]), model)]
        parts.add(symbols[i])
    return parts


def _renumber(processor: dict[str, Any] | None, numbers: dict[int, int]) -> None:
    """Renumber the tokens that a post-processor inserts, in place."""
    for inner in (processor or {}).get("processors", ()):
        _renumber(inner, numbers)
    kind = (processor or {}).get("type")
    if processor is not None and kind == "TemplateProcessing":
        for token in processor["special_tokens"].values():
            token["ids"] = [numbers[i] for i in token["ids"]]
    elif processor is not None and kind in ("BertProcessing", "RobertaProcessing"):
        for name in ("sep", "cls"):
            token, i = processor[name]
            processor[name] = [token, numbers[i]]
