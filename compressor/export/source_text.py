"""An encoder with a smaller vocabulary: the tokens of texts like the user's, and short tokens.

Most of a small encoder's weights are rows of its embedding table, of which texts of one domain use
a part. The other rows are removed from the table and the tokenizer, and the kept ones are
renumbered. Texts whose tokens are all kept get the same tokens and the same output. Other texts are
split into shorter tokens, down to single characters or bytes.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from compressor.errors import InputError, VerificationError
from compressor.export.smaller_tokenizer import cut_file, require_kind, short_tokens
from compressor.export.target_text import CHUNK
from compressor.model.checkpoint import Checkpoint
from compressor.model.quiet import quiet_transformers
from compressor.model.shared_copy import shared_copy
from compressor.model.tokenizer import remember_limits, save_tokenizer
from compressor.runtime.batching import in_chunks
from compressor.tasks.texts import TextFile


def cut_vocabulary(checkpoint: Checkpoint, file: TextFile) -> Checkpoint:
    """A checkpoint with only the tokens of a text; it shares all other weights.

    Args:
        checkpoint: of an encoder.
        file: texts like those that the model will read.

    Raises:
        InputError: the file cannot be read, or the tokenizer cannot be reduced.
        VerificationError: the smaller tokenizer splits a line of the text into other tokens.
    """
    tokenizer = checkpoint.tokenizer
    require_kind(tokenizer, checkpoint.name)
    chunks = (_ids(tokenizer, texts) for texts in in_chunks(file.each(), CHUNK))
    seen = {i for rows in chunks for ids in rows for i in ids}
    kept = sorted(seen | _always_kept(checkpoint) | short_tokens(tokenizer, seen))
    smaller = _cut_tokenizer(checkpoint, kept)
    # The file is read again, since it may be too large to keep.
    for texts in in_chunks(file.each(), CHUNK):
        for ids, new_ids in zip(_ids(tokenizer, texts), _ids(smaller, texts), strict=True):
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


def _ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    ids: list[list[int]] = tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
    return ids


def _always_kept(checkpoint: Checkpoint) -> set[int]:
    """Ids of special, added and configured tokens; positions may need those up to padding's."""
    config: Any = checkpoint.model.config
    ids = {*checkpoint.tokenizer.all_special_ids, *checkpoint.tokenizer.added_tokens_decoder}
    ids |= {value for value in _token_settings(config).values() if type(value) is int}
    ids &= set(checkpoint.tokenizer.get_vocab().values())  # configurations name others by default
    if checkpoint.entry.positions.after_padding:
        ids |= {*range(config.pad_token_id + 1)}  # so that its id does not change
    return ids


def _token_settings(config: Any) -> dict[str, Any]:
    """The ids of single tokens in a configuration."""
    return {
        name: value
        for name, value in vars(config).items()
        if name.endswith("_token_id") and value is not None
    }


def _cut_tokenizer(checkpoint: Checkpoint, kept: list[int]) -> Any:
    """The tokenizer with only the kept tokens, in their order."""
    tokenizer = checkpoint.tokenizer
    # Through its files: the library cannot remove tokens.
    with tempfile.TemporaryDirectory() as name, quiet_transformers():
        directory = Path(name)
        save_tokenizer(tokenizer, directory)
        path, settings = directory / "tokenizer.json", directory / "tokenizer_config.json"
        cut_file(path, kept)
        values = json.loads(settings.read_text(encoding="utf-8"))
        added = values.get("added_tokens_decoder")
        if added is not None:
            numbers = {str(old): str(new) for new, old in enumerate(kept)}
            values["added_tokens_decoder"] = {numbers[i]: x for i, x in added.items()}
            settings.write_text(json.dumps(values), encoding="utf-8")
        for other in {*directory.iterdir()} - {path, settings}:
            other.unlink()  # a vocabulary in another form, with all tokens
        smaller = transformers.AutoTokenizer.from_pretrained(directory)
        remember_limits(smaller)
    smaller.model_max_length = tokenizer.model_max_length
    wanted = dict(zip(tokenizer.convert_ids_to_tokens(kept), range(len(kept)), strict=True))
    if smaller.get_vocab() != wanted:
        raise InputError(
            f"the tokenizer of {checkpoint.name} ({type(tokenizer).__name__}) cannot be loaded "
            "with fewer tokens; leave --source-text out",
            id="tokenizer-cannot-be-cut",
        )
    return smaller


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
