"""Write a transformers tokenizer as a `tokenizers` file that the runtime can read without torch.

`MarianTokenizer` and `M2M100Tokenizer`, Python code around SentencePiece, are rebuilt here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from compressor.errors import InputError
from compressor.model.tokenizer import read_sentencepiece, uncut_copy
from compressor.runtime.text import FIRST_WITHOUT_ID, MARK, NO_TOKEN, UNKNOWN_CHARACTER

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPACE = "▁"
# Far below every real score (log-probabilities above -50): chosen only if nothing else fits.
NEVER = -1e6
CLEAN_UP = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"),
    (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


class _Unsupported(Exception):
    """Why a tokenizer cannot be written."""


def write_tokenizer(
    tokenizer: PreTrainedTokenizerBase, path: Path, layout: str | None = None
) -> None:
    """Write a tokenizer so that the runtime encodes and decodes the same.

    With special tokens, not truncated; decoded as by `batch_decode(skip_special_tokens=True)`.

    Args:
        tokenizer: of the checkpoint.
        path: the file to write, a `tokenizer.json`.
        layout: of another program, which keeps the tokenizer's own files, for the model's task.

    Raises:
        InputError: a tokenizer that the runtime does not support.
    """
    build_tokenizer(tokenizer, layout).save(str(path), pretty=False)


def build_tokenizer(tokenizer: Any, layout: str | None = None) -> Tokenizer:
    """What `write_tokenizer` writes; errors as there."""
    try:
        return _built(tokenizer)
    except _Unsupported as why:
        others = f", or use `compress export --layout {layout}`, which keeps the checkpoint's own"
        raise InputError(
            f"{why}, which this tool's runtime does not support; give a checkpoint with another "
            f"tokenizer{others if layout else ''}",
            id="tokenizer-class-unsupported",
        ) from None


def _built(tokenizer: Any) -> Tokenizer:
    name = type(tokenizer).__name__
    if tokenizer.split_special_tokens:
        raise _Unsupported(f"the {name} has split_special_tokens=true")
    if tokenizer.is_fast:
        built = uncut_copy(tokenizer)
        # transformers does not clean up text decoded by BPE.
        if tokenizer.clean_up_tokenization_spaces and type(built.model).__name__ != "BPE":
            built.decoder = _cleaning([built.decoder] if built.decoder else [])
    elif name == "MarianTokenizer":
        built = _from_marian(tokenizer)
    elif name == "M2M100Tokenizer":
        built = _from_m2m100(tokenizer)
    else:
        raise _Unsupported(f"the tokenizer class {name} has no fast form")
    return built


def _from_marian(tokenizer: Any) -> Tokenizer:
    """Pieces of `source.spm` under the ids of `vocab.json`, which has others.

    A piece that `vocab.json` lacks is appended after the last id, where the runtime maps all ids to
    the unknown token. An entry that `source.spm` lacks is never used in the segmentation: it has
    the prefix `MARK`, which the decoder removes. An exception: SentencePiece joins neighboring
    unknown characters into one piece, which may be an entry. Entries of only such characters have
    no prefix, and all other runs of them are replaced by a single one.
    """
    if tokenizer.separate_vocabs:
        raise _Unsupported("the MarianTokenizer has separate_vocabs=true")
    model = _read_model(Path(tokenizer.spm_files[0]), "UNIGRAM")
    kinds = model.SentencePiece
    scores = {p.piece: p.score for p in model.pieces if p.type == kinds.NORMAL}
    highest = max(scores.values())
    # SentencePiece's own bonus for these, unigram_model.cc (EncodeOptimized).
    defined = [p.piece for p in model.pieces if p.type == kinds.USER_DEFINED]
    scores |= {piece: len(piece.encode()) * highest - 0.1 for piece in defined}
    added = {token.content: i for i, token in tokenizer.added_tokens_decoder.items()}
    ids = tokenizer.encoder | added
    # Language codes are tokens only at the start of a text, unless they are added tokens. A mark
    # before each character separates unknown ones.
    codes = {
        piece: "".join(MARK + character for character in piece)
        for piece in tokenizer.encoder
        if piece.startswith(">>") and piece.endswith("<<") and piece not in added
    }
    # Scores are added in float64, and not in float32: segmentations of equal score may differ.
    vocabulary = _vocabulary(ids, added, codes, scores)
    built = Tokenizer(models.Unigram(vocabulary, tokenizer.unk_token_id))
    rules = model.normalizer_spec.precompiled_charsmap  # see `compressor.runtime.text`
    built.normalizer = _normalizer(ids, added, codes, scores, rules)
    # Split into words if no piece spans several, since the library caches the pieces of words.
    words = not any(SPACE in piece[1:] for piece in scores)
    built.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=words)
    eos = tokenizer.eos_token
    built.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A $B {eos}", special_tokens=[(eos, tokenizer.eos_token_id)]
    )
    built.decoder = _decoder(tokenizer.clean_up_tokenization_spaces)
    _add_tokens(built, tokenizer.added_tokens_decoder)
    return built


def _from_m2m100(tokenizer: Any) -> Tokenizer:
    """Pieces of a SentencePiece BPE model under the ids of vocab.json, then the languages."""
    from transformers.tokenization_utils_base import generate_merges

    path, ids = Path(tokenizer.spm_file), dict(tokenizer.encoder)
    model = _read_model(path, "BPE")
    scores = {p.piece: p.score for p in model.pieces if p.type == model.SentencePiece.NORMAL}
    if scores.keys() - ids.keys():
        raise _Unsupported(f"vocab.json lacks some of the pieces in {path}")
    merges = generate_merges({piece: ids[piece] for piece in scores}, scores)
    # fuse_unk, since SentencePiece makes one piece of neighboring unknown characters.
    built = Tokenizer(models.BPE(ids, merges, unk_token=tokenizer.unk_token, fuse_unk=True))
    rules = model.normalizer_spec.precompiled_charsmap
    built.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(NO_TOKEN, ""),
            *([normalizers.Precompiled(rules)] if rules else []),
            *_spaces(),
            normalizers.Prepend(" "),
        ]
    )
    built.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=True)
    # In the order of their ids, since the library gives an added token the next one that is free.
    ids = tokenizer.lang_token_to_id
    languages = {ids[x]: AddedToken(x, normalized=False, special=True) for x in ids}
    _add_tokens(built, languages | tokenizer.added_tokens_decoder)
    if any(built.token_to_id(x.content) != i for i, x in tokenizer.added_tokens_decoder.items()):
        raise _Unsupported("the ids of vocab.json and of added tokens have gaps")
    eos = tokenizer.eos_token
    source = tokenizer.get_lang_token(tokenizer.src_lang)
    built.post_processor = processors.TemplateProcessing(
        single=f"{source} $A {eos}",
        special_tokens=[(source, tokenizer.cur_lang_id), (eos, tokenizer.eos_token_id)],
    )
    built.decoder = _decoder(tokenizer.clean_up_tokenization_spaces)
    return built


def _add_tokens(built: Tokenizer, added: dict[int, AddedToken]) -> None:
    """Add tokens, which Python matches in the raw text for any value of `normalized`."""
    for _, token in sorted(added.items()):
        if token.single_word:
            raise _Unsupported(f"the added token {token.content!r} has single_word=true")
        raw = AddedToken(
            token.content,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=False,
            special=token.special,
        )
        (built.add_special_tokens if token.special else built.add_tokens)([raw])


def _read_model(path: Path, kind: str) -> Any:
    """A SentencePiece model of this kind, with the default treatment of spaces."""
    model = read_sentencepiece(path)
    trainer, rules = model.trainer_spec, model.normalizer_spec
    default = rules.add_dummy_prefix and rules.remove_extra_whitespaces and rules.escape_whitespaces
    if trainer.model_type != getattr(trainer, kind) or trainer.byte_fallback:
        raise _Unsupported(f"{path} is no {kind} model without byte fallback")
    if trainer.treat_whitespace_as_suffix or not default:
        raise _Unsupported(f"{path} does not treat spaces as SentencePiece does by default")
    return model


def _vocabulary(
    ids: Mapping[str, int],
    added: Collection[str],
    codes: Mapping[str, str],
    scores: Mapping[str, float],
) -> list[tuple[str, float]]:
    """(piece, score) in the order of ids, then the pieces of the source without an id."""
    if sorted(ids.values()) != list(range(len(ids))):
        raise _Unsupported("the ids of vocab.json and of added tokens have gaps")
    characters = set().union(*scores)
    entries = []
    for piece in sorted(ids, key=ids.__getitem__):
        if piece in codes:
            entries.append((codes[piece], NEVER))
        elif piece in scores:
            entries.append((piece, scores[piece]))
        elif piece in added or characters.isdisjoint(piece):
            entries.append((piece, NEVER))  # added tokens are matched in the raw text
        else:
            entries.append((MARK + piece, NEVER))
    without_id = [(piece, score) for piece, score in scores.items() if piece not in ids]
    return [*entries, (FIRST_WITHOUT_ID, NEVER), *without_id]


def _normalizer(
    ids: Iterable[str],
    added: Iterable[str],
    codes: Mapping[str, str],
    scores: Iterable[str],
    rules: bytes,
) -> Any:
    steps: list[Any] = [
        normalizers.Replace(MARK, UNKNOWN_CHARACTER),
        normalizers.Replace(NO_TOKEN, ""),
    ]
    # `>>de<<` is one token, only at the start of a text, with or without a following space.
    for code, spelled in codes.items():
        steps.append(_replace(rf"\A{_escape(code)}", f"{spelled} "))
    steps.append(_replace(r"\A>>[\s\S]*?<<", f"{MARK} "))
    if rules:
        steps.append(normalizers.Precompiled(rules))
    characters = set().union(*scores)  # SentencePiece does not know any other
    for token in added:
        # A token that results from normalization is not one: replace its unknown characters.
        if not characters.isdisjoint(token) and not characters.issuperset(token):
            known = "".join(c if c in characters else UNKNOWN_CHARACTER for c in token)
            steps.append(_replace(_escape(token), known))
    steps += _spaces()
    # If an entry has only unknown characters, the library must not join runs of other such ones.
    entries = [piece for piece in ids if characters.isdisjoint(piece)]
    if entries:
        unknown = "[^" + "".join(map(_escape, sorted(characters | {" ", SPACE, MARK}))) + "]"
        whole = "|".join(_escape(piece) for piece in sorted(entries) if len(piece) > 1)
        no_entry = f"(?!(?:{whole})(?!{unknown}))" if whole else ""
        runs = f"(?<!{unknown}){no_entry}{unknown}{{2,}}"
        steps.append(_replace(runs, UNKNOWN_CHARACTER))
    steps += [normalizers.Prepend(" "), normalizers.Replace(f" {MARK}", MARK)]
    return normalizers.Sequence(steps)


def _replace(pattern: str, content: str) -> Any:
    return normalizers.Replace(Regex(pattern), content)


def _spaces() -> list[Any]:
    """One space in place of several; at the ends none, nor marker of spaces."""
    return [_replace(" {2,}", " "), _replace(rf"\A +|[ {SPACE}]+\z", "")]


def _escape(text: str) -> str:
    """Escape a text for Oniguruma, the syntax of `tokenizers.Regex`."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\x{ord(c):02x}" for c in text)


def _decoder(clean_up: bool) -> Any:
    """Pieces to text: joined, the marks removed, `▁` to spaces, ends stripped as by `str.strip`."""
    steps = [
        decoders.Fuse(),
        decoders.Replace(MARK, ""),
        decoders.Replace(SPACE, " "),
        # `\s` lacks four control characters that `str.strip` takes for white space.
        decoders.Replace(Regex(r"\A[\s\x1c-\x1f]+|[\s\x1c-\x1f]+\z"), ""),
    ]
    return _cleaning(steps) if clean_up else decoders.Sequence(steps)


def _cleaning(steps: Iterable[Any]) -> Any:
    """The decoder steps, then transformers' clean-up of spaces before punctuation."""
    rules = [decoders.Replace(old, new) for old, new in CLEAN_UP]
    # Joined first, since the library applies rules to single pieces.
    return decoders.Sequence([*steps, decoders.Fuse(), *rules])
