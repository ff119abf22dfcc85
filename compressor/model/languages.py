"""What a multilingual translator translates from and into, and what a text is prefixed with.

All of it is kept where texts become tokens: in the tokenizer, which saves it in its
`tokenizer_config.json`, and in the generation settings, which force the target language.
"""

from __future__ import annotations

from typing import Any

from compressor.errors import UsageError, did_you_mean
from compressor.model.architecture import Architecture

PREFIX = "source_prefix"


def source_prefix(tokenizer: Any) -> str:
    """What every source begins with, such as `translate English to German: `; mostly empty."""
    return str(tokenizer.init_kwargs.get(PREFIX) or "")


def languages(tokenizer: Any) -> dict[str, int]:
    """Code of each language that a tokenizer knows -> its token; empty where it knows none."""
    if not hasattr(tokenizer, "src_lang") or not hasattr(tokenizer, "set_src_lang_special_tokens"):
        return {}
    known = getattr(tokenizer, "lang_code_to_id", None)
    if known is None:  # NLLB: its codes are its further special tokens
        tokens = map(str, tokenizer._extra_special_tokens)
        known = {token: tokenizer.convert_tokens_to_ids(token) for token in tokens}
    return {code: int(i) for code, i in known.items() if i not in (None, tokenizer.unk_token_id)}


def description(tokenizer: Any, entry: Architecture) -> dict[str, Any]:
    """What the runtime must know: entries of `graphs.json`."""
    known, prefix = languages(tokenizer), source_prefix(tokenizer)
    found: dict[str, Any] = {"source_prefix": prefix} if prefix else {}
    if known:
        found["languages"] = {
            "codes": known,
            "source": tokenizer.src_lang,
            "target": tokenizer.tgt_lang,
            "starts": starts_with_language(tokenizer, entry),
        }
    return found


def set_languages(
    model: Any,
    tokenizer: Any,
    entry: Architecture,
    source: str | None,
    target: str | None,
    where: str,
) -> None:
    """Translate from and into these languages from now on, in place; None: as it is.

    Args:
        where: name of the checkpoint, for messages.

    Raises:
        UsageError: the model has no languages, or not that one.
    """
    known = languages(tokenizer)
    for flag, name, code in (
        ("--source-language", "src_lang", source),
        ("--target-language", "tgt_lang", target),
    ):
        if code is None:
            continue
        require_language(flag, code, known, where)
        setattr(tokenizer, name, code)
        tokenizer.init_kwargs[name] = code
    if target is not None:
        settings: Any = model.generation_config
        if starts_with_language(tokenizer, entry):
            settings.decoder_start_token_id = model.config.decoder_start_token_id = known[target]
        else:
            settings.forced_bos_token_id = known[target]


def starts_with_language(tokenizer: Any, entry: Architecture) -> bool:
    """Whether decoders start with the target language, which ends targets; else it is forced.

    As mBART, whose labels are turned round by one. mBART-50's targets begin with the language.
    """
    return entry.turns_labels and not tokenizer.prefix_tokens


def require_language(flag: str, code: str, known: dict[str, int], where: str) -> None:
    """Raise UsageError unless `code` is one of the languages `known`."""
    if not known:
        raise UsageError(
            f"{flag} {code} is for models with a token for each language, and {where} has none; "
            "leave it out",
            id="option-without-use",
        )
    if code not in known:
        raise UsageError(
            f"{flag} {code}: {where} has no such language{did_you_mean(code, known)}; it has "
            f"{', '.join(sorted(known)[:12])}{', …' if len(known) > 12 else ''}",
            id="language-unknown",
        )


def set_prefix(tokenizer: Any, prefix: str) -> None:
    """Begin every source with a text from now on, in place."""
    tokenizer.init_kwargs[PREFIX] = prefix
