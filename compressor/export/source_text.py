"""An encoder with a smaller vocabulary: the tokens of texts like the user's, and short tokens.

Texts whose tokens are all kept get the same tokens and the same output. Others are split into
shorter tokens, down to single characters or bytes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import nn

from compressor.errors import InputError, VerificationError
from compressor.export.vocabulary import CHUNK, is_short
from compressor.model.checkpoint import Checkpoint
from compressor.model.modes import quiet_transformers, shared_copy
from compressor.model.stored_tokenizer import open_tokenizer
from compressor.model.tokenizer import save_tokenizer
from compressor.runtime.batching import in_chunks
from compressor.runtime.token_classifier import words_of
from compressor.tasks import TASKS
from compressor.tasks.texts import TextFile

KINDS = ("WordPiece", "Unigram", "BPE")
Merges = dict[tuple[str, str], tuple[int, str]]


def cut_vocabulary(checkpoint: Checkpoint, file: TextFile) -> Checkpoint:
    """Cut an encoder's checkpoint to the tokens of a text; it shares all other weights.

    Args:
        checkpoint: of an encoder.
        file: texts like those that the model will read.

    Raises:
        InputError: the tokenizer cannot be reduced, or the file cannot be read.
        VerificationError: the smaller tokenizer splits a text of the file differently.
    """
    tokenizer = checkpoint.tokenizer
    kind = _model(tokenizer)["type"] if tokenizer.is_fast else type(tokenizer).__name__
    if kind not in KINDS:
        raise InputError(
            f"--source-text needs a {', '.join(KINDS[:-1])} or {KINDS[-1]} tokenizer in a "
            f"tokenizer.json, and that of {checkpoint.name} is {kind}; leave it out",
            id="tokenizer-cannot-be-cut",
        )
    words = TASKS[checkpoint.task].reads_words
    chunks = (_ids(tokenizer, texts, words) for texts in in_chunks(file.each(), CHUNK))
    seen = {i for rows in chunks for ids in rows for i in ids}
    kept = sorted(seen | _always_kept(checkpoint) | short_tokens(tokenizer, seen))
    smaller = _cut_tokenizer(checkpoint, kept)
    # The file is read again, since it may be too large to keep.
    for texts in in_chunks(file.each(), CHUNK):
        rows = (_ids(x, texts, words) for x in (tokenizer, smaller))
        for ids, new_ids in zip(*rows, strict=True):
            if ids != [kept[i] for i in new_ids]:
                raise VerificationError(
                    f"the smaller tokenizer splits a text of {file.path} with {len(ids)} tokens "
                    "differently; please report this with the checkpoint's name",
                    id="tokenizer-encodes-differently",
                )
    return replace(checkpoint, model=_cut_model(checkpoint.model, kept), tokenizer=smaller)


def embedding_rows(model: Any) -> tuple[int, int]:
    """Number of rows of a model's embedding table, and their bytes in float32."""
    table = model.get_input_embeddings().weight
    return len(table), 4 * table.numel()


def _ids(tokenizer: Any, texts: list[str], words: bool) -> list[list[int]]:
    """Token ids of texts; with `words` also as they are where the words are read one by one."""
    options = {"return_attention_mask": False, "verbose": False}
    ids = list(tokenizer(texts, **options)["input_ids"])
    if words:
        sentences = [words_of(text) for text in texts]
        ids += tokenizer(sentences, is_split_into_words=True, **options)["input_ids"]
    return ids


def _always_kept(checkpoint: Checkpoint) -> set[int]:
    """Ids of special, added and configured tokens, and those up to padding's for positions."""
    config: Any = checkpoint.model.config
    ids = {*checkpoint.tokenizer.all_special_ids, *checkpoint.tokenizer.added_tokens_decoder}
    ids |= {value for value in _token_settings(config).values() if type(value) is int}
    ids &= set(checkpoint.tokenizer.get_vocab().values())  # configurations name others by default
    if checkpoint.entry.positions_after_padding:
        ids |= {*range(config.pad_token_id + 1)}  # so that its id does not change
    return ids


def _token_settings(config: Any) -> dict[str, Any]:
    settings = vars(config).items()
    return {name: x for name, x in settings if name.endswith("_token_id") and x is not None}


def _cut_model(model: Any, kept: list[int]) -> nn.Module:
    """A copy with some rows of the embedding table, which shares all other weights."""
    made = shared_copy(model)
    old, numbers = model.get_input_embeddings(), {token: row for row, token in enumerate(kept)}
    table = nn.Embedding(
        len(kept), old.embedding_dim, padding_idx=numbers.get(old.padding_idx), device="meta"
    )
    table.weight = nn.Parameter(old.weight.detach()[kept])
    made.set_input_embeddings(table.train(old.training))
    made.config.vocab_size = len(kept)
    for name, value in _token_settings(made.config).items():
        ids = [numbers[i] for i in value if i in numbers] if isinstance(value, list) else None
        # None for a token that the tokenizer does not have: configurations have such defaults.
        setattr(made.config, name, numbers.get(value) if ids is None else ids)
    return made


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
        smaller = open_tokenizer(directory)
    smaller.model_max_length = tokenizer.model_max_length
    wanted = dict(zip(tokenizer.convert_ids_to_tokens(kept), range(len(kept)), strict=True))
    if smaller.get_vocab() != wanted:
        raise InputError(
            f"the tokenizer of {checkpoint.name} ({type(tokenizer).__name__}) cannot be loaded "
            "with fewer tokens; leave --source-text out",
            id="tokenizer-cannot-be-cut",
        )
    return smaller


def cut_file(path: Path, kept: Sequence[int]) -> None:
    """Cut a `tokenizer.json`, in place.

    Args:
        path: the file.
        kept: ids, ascending, all added tokens among them; new ids are their places here.
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
    for token in data["added_tokens"]:
        token["id"] = numbers[token["id"]]
    if data["padding"] is not None:
        data["padding"]["pad_id"] = numbers[data["padding"]["pad_id"]]
    processors = [data["post_processor"] or {"type": None}]
    for processor in processors:  # which insert tokens; it grows by inner ones
        processors += processor.get("processors", ())
        if processor["type"] == "TemplateProcessing":
            for token in processor["special_tokens"].values():
                token["ids"] = [numbers[i] for i in token["ids"]]
        elif processor["type"] in ("BertProcessing", "RobertaProcessing"):
            for name in ("sep", "cls"):
                token, i = processor[name]
                processor[name] = [token, numbers[i]]
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def short_tokens(tokenizer: Any, seen: Collection[int]) -> set[int]:
    """Find single characters and bytes, and what the tokens of a text are built from.

    WordPiece takes the longest token that matches, which is kept. Unigram maximizes the sum of
    scores; that of unknown characters depends on the lowest, whose token is kept. BPE merges pairs
    in the order of its list: all parts of a kept token are kept.

    Args:
        tokenizer: of a kind in `KINDS`.
        seen: ids of the tokens of the text.

    Returns:
        Their ids.
    """
    model = _model(tokenizer)
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


def _model(tokenizer: Any) -> Any:
    return json.loads(tokenizer.backend_tokenizer.to_str())["model"]


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
