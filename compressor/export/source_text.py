"""An encoder with a smaller vocabulary: the tokens of texts like the user's, and short tokens.

Texts whose tokens are all kept get the same tokens and the same output, also behind each of the
model's prompts. Others are split into shorter tokens, down to single characters or bytes.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from compressor.errors import InputError, VerificationError
from compressor.export.verify import EXPORT_TOLERANCE, relative_difference
from compressor.export.vocabulary import CHUNK, is_short
from compressor.model.checkpoint import Checkpoint
from compressor.model.modes import quiet_transformers, shared_copy
from compressor.model.stored_tokenizer import open_tokenizer, remember_limits
from compressor.model.tokenizer import prompts_of, save_tokenizer
from compressor.progress import Progress
from compressor.runtime.batching import in_chunks
from compressor.runtime.token_classifier import words_of
from compressor.tasks import TASKS
from compressor.tasks.batching import encode_texts
from compressor.tasks.texts import TextFile

_ANSWERED = 32  # texts whose answers are compared, or one behind each of more prompts
KINDS = ("WordPiece", "Unigram", "BPE")
Merges = dict[tuple[str, str], tuple[int, str]]


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
    kind = _model(tokenizer)["type"] if tokenizer.is_fast else type(tokenizer).__name__
    if kind not in KINDS:
        raise InputError(
            f"--source-text needs a {', '.join(KINDS[:-1])} or {KINDS[-1]} tokenizer in a "
            f"tokenizer.json, and that of {checkpoint.name} is {kind}; leave it out",
            id="tokenizer-cannot-be-cut",
        )
    words = TASKS[checkpoint.task].reads_words
    prompts = prompts_of(tokenizer)
    chunks = (_ids(tokenizer, texts, words=words) for texts in _served(file, prompts))
    seen = {i for rows in chunks for ids in rows for i in ids}
    seen |= {i for ids in _ids(tokenizer, prompts) for i in ids}
    kept = sorted(seen | _always_kept(checkpoint) | short_tokens(tokenizer, seen))
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
    for texts in _served(file, prompts):
        require_same_ids(texts, words=words)
    some = list(islice(file.each(), max(1, _ANSWERED // len(prompts))))
    require_same_ids(some, some[::-1])  # as pairs
    cut = replace(checkpoint, model=_cut_model(checkpoint.model, kept), tokenizer=smaller)
    require_same_answers(checkpoint, cut, [f"{prompt}{x}" for prompt in prompts for x in some])
    return cut


def shorten_vocabulary(checkpoint: Checkpoint, text: TextFile, progress: Progress) -> Checkpoint:
    """The checkpoint with the tokens of a text alone, said to the user (see `cut_vocabulary`)."""
    progress.message(f"cutting {text.path.name} into tokens …")
    cut = cut_vocabulary(checkpoint, text)
    kept, total = (embedding_rows(x.model)[0] for x in (cut, checkpoint))
    progress.message(f"  {kept:,} of {total:,} tokens are kept")
    return cut


def _served(file: TextFile, prompts: Sequence[str]) -> Iterator[list[str]]:
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


def embedding_rows(model: Any) -> tuple[int, int]:
    """Number of rows of a model's embedding table, and their bytes in float32."""
    table = model.get_input_embeddings().weight
    return len(table), 4 * table.numel()


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
    _change_inserted(_state(tokenizer) | {"padding": padding}, keep)
    ids |= {value for value in _token_settings(config).values() if type(value) is int}
    ids &= set(tokenizer.get_vocab().values())  # configurations name others by default
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
    _change_inserted(data, numbers.__getitem__)
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def _change_inserted(data: dict[str, Any], change: Callable[[int], int]) -> None:
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


def _state(tokenizer: Any) -> Any:
    return json.loads(tokenizer.backend_tokenizer.to_str())


def _model(tokenizer: Any) -> Any:
    return _state(tokenizer)["model"]


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
