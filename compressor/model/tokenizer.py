"""A checkpoint's tokenizer: from its own files, complete, and of the model's vocabulary."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers, processors

from compressor.errors import CompressWarning, InputError
from compressor.model.architecture import LEAST_TOKENS, decoder_tokens
from compressor.model.files import CheckpointFiles
from compressor.model.languages import languages, open_languages, source_prefix
from compressor.model.modes import quiet_transformers
from compressor.model.reading import first_line, malformed
from compressor.model.sentence_settings import SentenceSettings, is_cross_encoder
from compressor.model.stored_tokenizer import (
    difference_of,
    keep_pipeline,
    open_tokenizer,
    save_pipeline,
)
from compressor.storage.input_files import panics_raised

# Vocabularies are often padded to a round number of rows; no model has more rows than this without
# a token.
MOST_UNUSED_ROWS = 1024
# Names that tokenizer classes have for files without which they know no tokens.
_NEEDED = ("vocab_file", "merges_file", "vocab", "source_spm", "target_spm")
_NO_POST_PROCESSOR = processors.TemplateProcessing("$A", "$A $B:1")  # behaves as if none is set


def load_tokenizer(files: CheckpointFiles) -> Any:
    """Open the tokenizer of a checkpoint, and check that it can be used with its model.

    Warns where it reads texts otherwise than transformers alone would.

    Args:
        files: of the checkpoint.

    Raises:
        InputError: it is missing, damaged, without tokens that are needed, or of another model.
    """
    directory, writes = files.directory, bool(files.config.is_encoder_decoder)
    try:
        with quiet_transformers(), panics_raised():
            tokenizer = open_tokenizer(directory, files.trust_remote_code, writes)
            open_languages(tokenizer)
            vocabulary = tokenizer.get_vocab()
            if not all(type(token) is int and token >= 0 for token in vocabulary.values()):
                raise ValueError("a token has no number")
            tokenizer("a", truncation=True, max_length=8)
            tokenizer.convert_tokens_to_ids(tokenizer.all_special_tokens)
    except Exception as error:  # whatever the library trips over is in the files
        reason = f"its tokenizer cannot be loaded, {first_line(error)}"
        raise malformed(directory, reason, "tokenizer-unreadable") from error
    names = getattr(type(tokenizer), "vocab_files_names", {})
    needed = [names[key] for key in _NEEDED if key in names]
    missing = [name for name in needed if not (directory / name).exists()]
    # Where files are missing, transformers makes up an empty tokenizer.
    if missing and not any(directory.glob("tokenizer.*json")):
        raise InputError(
            f"{directory} has no tokenizer: neither tokenizer.json nor {' and '.join(missing)} is "
            "there; copy the tokenizer's files from where the checkpoint was fine-tuned",
            id="tokenizer-missing",
        )
    _require_fit(tokenizer, vocabulary, files)
    _require_same_each_time(tokenizer, directory)
    if difference_of(tokenizer):
        text = f"of {directory}, {difference_of(tokenizer)}"
        warnings.warn(text, CompressWarning, stacklevel=2)
    return tokenizer


def _require_fit(tokenizer: Any, vocabulary: Mapping[str, int], files: CheckpointFiles) -> None:
    config, directory = files.config, files.directory
    # M2M100's vocabulary does not list the tokens of its languages.
    known = {*vocabulary.values(), *languages(tokenizer).values()}
    highest, tokens = max(known, default=-1), max(len(tokenizer), len(known))
    sizes = [(highest, tokens, int(config.vocab_size))]
    if decoder_tokens(config) != config.vocab_size or getattr(tokenizer, "separate_vocabs", False):
        written = target_ids(tokenizer)
        sizes += [(max(written.values(), default=-1), len(written), decoder_tokens(config))]
    for highest, tokens, rows in sizes:
        too_few = tokens < rows - MOST_UNUSED_ROWS or 2 * tokens < rows
        if max(highest, tokens - 1) >= rows or too_few:
            raise InputError(
                f"the tokenizer of {directory} has {tokens:,} tokens (the highest is number "
                f"{highest:,}), and the model has embeddings for {rows:,}; give the tokenizer that "
                "the model was trained with",
                id="tokenizer-of-another-model",
            )
    ends = (tokenizer.eos_token_id, tokenizer.sep_token_id)
    if tokenizer.pad_token_id is None or ends == (None, None):
        missing = "pad token" if tokenizer.pad_token_id is None else "end or separator token"
        raise InputError(
            f"the tokenizer of {directory} has no {missing}; add it to tokenizer_config.json",
            id="tokenizer-without-token",
        )
    longest = tokenizer.model_max_length
    if not isinstance(longest, int | float) or not longest >= LEAST_TOKENS:
        raise InputError(
            f"the tokenizer of {directory} takes texts of {longest} tokens at most "
            "(model_max_length); write the model's number of positions into tokenizer_config.json",
            id="tokenizer-length-invalid",
        )


def _require_same_each_time(tokenizer: Any, directory: Path) -> None:
    model = tokenizer.backend_tokenizer.model if tokenizer.is_fast else None
    dropout = getattr(model, "dropout", None)
    if dropout:
        raise InputError(
            f"the tokenizer.json of {directory} leaves out merges at random (dropout "
            f"{dropout:g}), so that a text has other tokens each time; set dropout to null "
            "there, as it is meant outside of training",
            id="tokenizer-at-random",
        )


def require_embeddings(
    tokenizer: Any, model: Any, types: int | None, where: Path, pair: bool = False
) -> None:
    """Raise `InputError` if a text gets a token, or a type, that the model has no embedding for.

    Special tokens and types come from the post-processor, whatever the text is.

    Args:
        tokenizer: of the checkpoint.
        model: of the checkpoint.
        types: how many the model's graphs tell apart (`Architecture.token_types`); None: it has
            none, and leaves out those of the tokenizer.
        where: the checkpoint, for the message.
        pair: check a pair of texts.
    """
    with quiet_transformers():
        encoded = tokenizer(*(["a", "a"] if pair else ["a"]))
    config, what = model.config, "a pair of texts" if pair else "a text"
    highest = max(encoded["input_ids"], default=0)
    if highest >= config.vocab_size:
        raise InputError(
            f"the tokenizer of {where} gives {what} the token number {highest:,}, and the model "
            f"has embeddings for {config.vocab_size:,}; give the tokenizer that the model was "
            "trained with",
            id="tokenizer-of-another-model",
        )
    # The model is handed those that the tokenizer gives unasked.
    highest = max(encoded.get("token_type_ids", ()), default=0)
    if types is not None and highest >= types:
        known = config.type_vocab_size
        only = "" if types == known else f", of which graphs of {config.model_type} know 0 alone"
        raise InputError(
            f"the tokenizer of {where} gives {what} the token type {highest}, and the model has "
            f"type_vocab_size {known}{only}; give {'single texts, or ' if pair else ''}the "
            "tokenizer that the model was trained with",
            id="token-type-unknown",
        )


def target_ids(tokenizer: Any) -> dict[str, int]:
    """Token -> id in the target's vocabulary; a Marian tokenizer may have two."""
    if not getattr(tokenizer, "separate_vocabs", False):
        return dict(tokenizer.get_vocab())
    ids: dict[str, int] = tokenizer.target_encoder
    taken = {*ids.values()}
    # Tokens that were added to the source's vocabulary have the same free numbers here.
    added = {x: i for x, i in tokenizer.added_tokens_encoder.items() if i not in taken}
    return added | ids


def tokens_by_side(tokenizer: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Token -> id of all that a model reads, and of all that it writes, languages included.

    M2M100's vocabulary does not list the tokens of its languages; a Marian tokenizer may have two.
    """
    written = target_ids(tokenizer)
    return tokenizer.get_vocab() | languages(tokenizer), written


def save_tokenizer(tokenizer: Any, directory: Path) -> None:
    """Write a tokenizer's files, which cut and pad as they did, not as in the last call."""
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        truncation, padding = getattr(tokenizer, "stored_limits", (None, None))
        backend.no_truncation()
        backend.no_padding()
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)
    with quiet_transformers():
        tokenizer.save_pretrained(directory)
    save_pipeline(tokenizer, directory)


def follow_sentence_settings(
    tokenizer: Any, config: Any, settings: SentenceSettings | None
) -> None:
    """Make a tokenizer cut and lower-case texts as sentence-transformers does, in place."""
    settings = settings or SentenceSettings()
    tokenizer.sentence_settings, tokenizer.sentence_config = settings, config  # are not saved
    # Of both lengths that files may give the package takes its own, even a larger one, and the
    # number of positions where it has none, also for models whose positions are relative.
    lengths = (tokenizer.model_max_length, getattr(config, "max_position_embeddings", None))
    tokenizer.model_max_length = settings.max_tokens or min(x for x in lengths if x is not None)
    if not tokenizer.is_fast:
        if settings.lower_case:
            raise InputError(
                f"tokenizer class {type(tokenizer).__name__} has no fast form, which do_lower_case "
                "of sentence-transformers needs; give a checkpoint with tokenizer.json",
                id="tokenizer-class-unsupported",
            )
        return
    backend = tokenizer.backend_tokenizer
    if settings.lower_case:
        current = backend.normalizer
        several = isinstance(current, normalizers.Sequence)
        steps = list(current) if several else [] if current is None else [current]
        if not any(isinstance(step, normalizers.Lowercase) for step in steps):
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
            keep_pipeline(tokenizer)
    # The package hands on what a tokenizer gives unasked.
    if is_cross_encoder(config) and "token_type_ids" not in tokenizer.model_input_names:
        backend.post_processor = _without_types(backend)


def reopened(tokenizer: Any, opened: Any) -> Any:
    """Set on an opened tokenizer, in place, what is set on the one that was saved.

    Args:
        tokenizer: that was saved.
        opened: what its files were opened to.

    Returns:
        The opened tokenizer.
    """
    open_languages(opened)
    if hasattr(tokenizer, "sentence_settings"):
        follow_sentence_settings(opened, tokenizer.sentence_config, tokenizer.sentence_settings)
    return opened


def sentence_settings_of(tokenizer: Any) -> SentenceSettings:
    """The settings that a tokenizer follows; those without effect if it follows none."""
    return getattr(tokenizer, "sentence_settings", SentenceSettings())


def prompts_of(tokenizer: Any) -> list[str]:
    """What texts may begin with when they are read: first nothing, then the model's prompts."""
    settings = sentence_settings_of(tokenizer)
    known = (source_prefix(tokenizer), settings.default_prompt, *settings.prompts.values())
    return list(dict.fromkeys(["", *known]))


def uncut_copy(tokenizer: Any) -> Tokenizer:
    """A copy of a fast tokenizer's part in Rust, which neither cuts nor pads."""
    copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    copy.encode_special_tokens = tokenizer.split_special_tokens  # which the string does not say
    # Where transformers does not hand token types to the model, that takes 0 for all.
    if "token_type_ids" not in tokenizer.model_input_names:
        copy.post_processor = _without_types(copy)
    copy.no_truncation()
    copy.no_padding()
    return copy


def _without_types(backend: Tokenizer) -> Any:
    """Its post-processor, changed to give all tokens type 0."""
    # The library shows a post-processor only as JSON.
    state = json.loads(backend.to_str())
    processor = state["post_processor"] or json.loads(_NO_POST_PROCESSOR.__getstate__())
    for step in processor["processors"] if processor["type"] == "Sequence" else [processor]:
        if step["type"] == "BertProcessing":
            (cls, start), (sep, end) = step["cls"], step["sep"]
            template = processors.TemplateProcessing(
                f"{cls} $A {sep}", f"{cls} $A {sep} $B {sep}", [(cls, start), (sep, end)]
            )
            step.clear()
            step.update(json.loads(template.__getstate__()))
        for form in ("single", "pair") if step["type"] == "TemplateProcessing" else ():
            for piece in step[form]:
                next(iter(piece.values()))["type_id"] = 0
    state["post_processor"] = processor
    return Tokenizer.from_str(json.dumps(state)).post_processor


def read_sentencepiece(path: Path) -> Any:
    """Read a SentencePiece model."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    model.ParseFromString(path.read_bytes())
    return model
