"""A tokenizer with fewer tokens: those of texts, and what anything can be spelled with."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from compressor.export.vocabulary import is_short
from compressor.storage.files import write_json

KINDS = ("WordPiece", "Unigram", "BPE")
Merges = dict[tuple[str, str], tuple[int, str]]


def kind_of(tokenizer: Any) -> str:
    """One of `KINDS`, or the class of a tokenizer that is Python code."""
    return str(model_of(tokenizer)["type"] if tokenizer.is_fast else type(tokenizer).__name__)


def state_of(tokenizer: Any) -> Any:
    """The contents of the `tokenizer.json` of a fast tokenizer."""
    return json.loads(tokenizer.backend_tokenizer.to_str())


def model_of(tokenizer: Any) -> Any:
    """The model in it."""
    return state_of(tokenizer)["model"]


def cut_file(path: Path, kept: Sequence[int]) -> None:
    """Cut a `tokenizer.json`, in place.

    Args:
        path: the file.
        kept: ids, ascending; new ids are their places here. Added tokens may be gone if nothing
            inserts them.
    """
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
            for pair, (_, merged) in sorted(_merges(model).items(), key=lambda item: item[1][0])
            if {*pair, merged} <= model["vocab"].keys()
        ]
    data["added_tokens"] = [
        {**token, "id": numbers[token["id"]]}
        for token in data["added_tokens"]
        if token["id"] in numbers
    ]
    change_inserted(data, numbers.__getitem__)
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


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


def cut_settings(path: Path, kept: Sequence[int], tokens: Collection[str]) -> None:
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
    write_json(path, data)


def short_tokens(model: dict[str, Any], seen: Collection[int]) -> set[int]:
    """Find single characters and bytes, and what the tokens of a text are built from.

    WordPiece takes the longest token that matches, which is kept. Unigram maximizes the sum of
    scores; that of unknown characters depends on the lowest, whose token is kept. BPE merges pairs
    in the order of its list: all parts of a kept token are kept.

    Args:
        model: of a `tokenizer.json`, of a kind in `KINDS`.
        seen: ids of the tokens of the text.

    Returns:
        Their ids.
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
        merges = _merges(model)
        parts = {y for x, i in ids.items() if i in seen for y in _parts(x, merges, model)}
        kept |= {ids[part] for part in parts if part in ids}
    return kept


def _merges(model: dict[str, Any]) -> Merges:
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
