"""The languages of a multilingual translator, and the prefix of its sources, in its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

from compressor.errors import InputError, UsageError, did_you_mean
from compressor.model.architecture import Architecture

PREFIX = "source_prefix"
# Tokenizers that know languages by a list of their class, and cannot be opened with another one as
# `src_lang`, though they translate from it. Its code is then stored under a name of our own.
_CLOSED, _SOURCE = ("MBart50Tokenizer", "M2M100Tokenizer"), "source_language"


def source_prefix(tokenizer: Any) -> str:
    """The text that every source begins with, `translate English to German: `; mostly empty."""
    return str(tokenizer.init_kwargs.get(PREFIX) or "")


def set_prefix(tokenizer: Any, prefix: str) -> None:
    """Let every source begin with a text from now on, in place."""
    tokenizer.init_kwargs[PREFIX] = prefix


def languages(tokenizer: Any) -> dict[str, int]:
    """Code of each language that a tokenizer knows -> its token; empty where it knows none.

    Those that its class lists, and added tokens without another role: special ones (all of NLLB's,
    and what fine-tuning added), others that are spelled like a known code, and the codes in use.
    """
    if not _has_languages(tokenizer):
        return {}
    listed: dict[str, int] = getattr(tokenizer, "lang_code_to_id", {})
    known = {code: int(i) for code, i in listed.items() if i not in (None, tokenizer.unk_token_id)}
    added = _added_codes(tokenizer)
    special = {code for code, i in added.items() if tokenizer.added_tokens_decoder[i].special}
    spelled = set(map(_spelling, {*known, *special}))
    in_use = {tokenizer.src_lang, tokenizer.tgt_lang}
    for code, i in added.items():
        if code in special or code in in_use or _spelling(code) in spelled:
            known.setdefault(code, i)
    return known


def _has_languages(tokenizer: Any) -> bool:
    return hasattr(tokenizer, "src_lang") and hasattr(tokenizer, "set_src_lang_special_tokens")


def _added_codes(tokenizer: Any) -> dict[str, int]:
    """What each added token without another role is called as a language -> its number."""
    roles = {str(getattr(tokenizer, name)) for name in tokenizer.SPECIAL_TOKENS_ATTRIBUTES}
    tokens = {x.content: i for i, x in tokenizer.added_tokens_decoder.items()}
    tokens = {token: i for token, i in tokens.items() if token not in roles}
    if not hasattr(tokenizer, "lang_code_to_token"):
        return tokens
    # M2M100 calls the language of `__de__` de.
    codes = {token: re.fullmatch("__(.+)__", token) for token in tokens}
    return {code[1]: tokens[token] for token, code in codes.items() if code is not None}


def _spelling(code: str) -> str:
    """`eng_Latn` -> `a_Aa`: two codes of one kind have the same."""
    return re.sub("[A-Z]+", "A", re.sub("[a-z]+", "a", code))


def open_languages(tokenizer: Any) -> None:
    """Make an opened tokenizer know all of its languages, and its stored source, in place.

    Raises ValueError where two languages have one token.
    """
    if not _has_languages(tokenizer):
        return
    known = languages(tokenizer)
    if hasattr(tokenizer, "lang_code_to_token"):
        # M2M100's languages are no words of a text. The hub's files make them special tokens; a
        # tokenizer that transformers 5 makes and saves does not.
        if len({*known.values()}) < len(known):
            numbers = list(known.values())
            twice = [code for code, i in known.items() if numbers.count(i) > 1]
            raise ValueError(f"its languages {' and '.join(twice)} have one token")
        ids = tokenizer.lang_token_to_id
        if not ids.keys() <= set(tokenizer.all_special_tokens):
            tokens = sorted(ids, key=ids.__getitem__)
            more = {"extra_special_tokens": tokens}
            tokenizer.add_special_tokens(more, replace_extra_special_tokens=False)
        # Its class reads and writes the languages of its list alone.
        for code, i in known.items():
            if tokenizer.lang_code_to_token.setdefault(code, f"__{code}__") not in ids:
                ids[f"__{code}__"] = i
    source = tokenizer.init_kwargs.get(_SOURCE)
    if source is not None:
        if source not in _added_codes(tokenizer):
            raise ValueError(f"{_SOURCE} is {source}, which is none of its languages")
        tokenizer.src_lang = source


def text_codes(tokenizer: Any) -> dict[str, str]:
    """`fra` and `>>fra<<` -> `>>fra<<`, with which sources of multilingual Marian models begin."""
    listed = getattr(tokenizer, "supported_language_codes", ())
    return {name: code for code in listed for name in (code, code[2:-2])}


def direction(tokenizer: Any) -> tuple[str | None, str | None]:
    """Codes of the languages that a translator translates from and into, as far as it says so."""
    if languages(tokenizer):
        return tokenizer.src_lang, tokenizer.tgt_lang
    source, target = (getattr(tokenizer, x, None) for x in ("source_lang", "target_lang"))
    codes = text_codes(tokenizer)
    # The code before a source says the target; a model that has but one may go without.
    said = re.match(">>(.+?)<<", source_prefix(tokenizer)) if codes else None
    if said or len(set(codes.values())) > 1:
        target = said and said[1]
    return source, target


def starts_with_language(tokenizer: Any, entry: Architecture) -> bool:
    """Whether decoders start with the target language, which ends targets; else it is forced."""
    # As mBART, whose labels are shifted right by one. mBART-50's targets begin with the language.
    decoder = entry.decoder
    return decoder is not None and decoder.shifts_language and not tokenizer.prefix_tokens


def _setting(tokenizer: Any, entry: Architecture) -> str:
    starts = starts_with_language(tokenizer, entry)
    return "decoder_start_token_id" if starts else "forced_bos_token_id"


def description(tokenizer: Any, entry: Architecture) -> dict[str, Any]:
    """Entries of `graphs.json` for the runtime."""
    known, prefix = languages(tokenizer), source_prefix(tokenizer)
    entries: dict[str, Any] = {"source_prefix": prefix} if prefix else {}
    if not known:
        sides = zip(("source_language", "target_language"), direction(tokenizer), strict=True)
        entries |= {name: code for name, code in sides if code is not None}
    if known:
        entries["languages"] = {
            "codes": known,
            "source": tokenizer.src_lang,
            "target": tokenizer.tgt_lang,
            "starts": starts_with_language(tokenizer, entry),
        }
    return entries


def set_languages(
    model: Any,
    tokenizer: Any,
    entry: Architecture,
    source: str | None,
    target: str | None,
    where: str,
) -> None:
    """Translate from and into these languages from now on, in place.

    Args:
        model: whose generation settings may name the target.
        tokenizer: of the model.
        entry: of its architecture.
        source: code of the language; None: as it is.
        target: code of the language; None: as it is.
        where: name of the checkpoint, for messages.

    Raises:
        UsageError: the model has no languages, or not that one.
    """
    known, codes = languages(tokenizer), text_codes(tokenizer)
    if known:  # whoever names another added token as a language means that
        known = _added_codes(tokenizer) | known
    if target is not None and codes:
        _require_language("--target-language", target, codes, where)
        return set_prefix(tokenizer, f"{codes[target]} ")
    for flag, name, code in (
        ("--source-language", "src_lang", source),
        ("--target-language", "tgt_lang", target),
    ):
        if code is not None:
            _require_language(flag, code, known, where)
            setattr(tokenizer, name, code)
            tokenizer.init_kwargs[name] = code
    _store_source(tokenizer)
    if target is not None:
        setattr(model.generation_config, _setting(tokenizer, entry), known[target])
        if starts_with_language(tokenizer, entry):
            model.config.decoder_start_token_id = known[target]


def kept_languages(tokenizer: Any, asked: Iterable[str], where: str) -> tuple[set[int], set[int]]:
    """Tokens of the languages that a smaller vocabulary keeps, and of those that it can do without.

    Kept are those that a translator translates from and into, those that are asked for, and those
    that the tokenizer's class lists: it adds their tokens whenever it is opened.

    Args:
        tokenizer: with its languages set.
        asked: codes of the others, from `--keep-languages`.
        where: name of the checkpoint, for messages.

    Raises:
        UsageError: the model has no languages, or not that one.
    """
    known, listed = languages(tokenizer), getattr(tokenizer, "lang_code_to_id", {})
    named = {name: tokenizer.encoder[code] for name, code in text_codes(tokenizer).items()}
    if known:
        named = _added_codes(tokenizer) | known
        asked = [*asked, *filter(None, (tokenizer.src_lang, tokenizer.tgt_lang))]
    for code in asked:
        _require_language("--keep-languages", code, named, where)
    kept = {named[code] for code in asked} | {i for code, i in known.items() if code in listed}
    return kept, {*known.values()} - kept


def _store_source(tokenizer: Any) -> None:
    """Have the source language saved under the name with which the tokenizer can be opened."""
    settings = tokenizer.init_kwargs
    settings.pop(_SOURCE, None)
    if type(tokenizer).__name__ in _CLOSED and tokenizer.src_lang not in tokenizer.lang_code_to_id:
        settings[_SOURCE] = tokenizer.src_lang
        settings.pop("src_lang", None)  # else it is saved as the attribute is


def _require_language(flag: str, code: str, known: Collection[str], where: str) -> None:
    if not known:
        raise UsageError(
            f"{flag} {code} is for models with a token for each language, and {where} has none; "
            "leave it out",
            id="option-without-use",
        )
    if code not in known:
        raise UsageError(
            f"{flag} {code}: {where} has no such language{did_you_mean(code, known)}; it has "
            f"{_first(sorted(known), 12)}",
            id="language-unknown",
        )


def require_said(model: Any, tokenizer: Any, entry: Architecture, where: str) -> None:
    """Require a target language, on which tokenizer and generation settings agree, in place."""
    known = languages(tokenizer)
    if not known:
        return _require_prefix(model.config, tokenizer, where)
    names = {token: code for code, token in (_added_codes(tokenizer) | known).items()}
    setting = _setting(tokenizer, entry)
    forced = names.get(getattr(model.generation_config, setting))
    target = tokenizer.tgt_lang
    for name, code in (("src_lang", tokenizer.src_lang), ("tgt_lang", target)):
        if code is not None and code not in known:
            raise InputError(
                f"the tokenizer of {where} says {name}={code}, and has no such language; name one "
                "with --source-language and --target-language",
                id="language-unknown",
            )
    if target is None and forced is None:
        raise target_missing(where, sorted(known))
    if target and forced and target != forced:
        raise InputError(
            f"{where} says tgt_lang={target} in its tokenizer, and {forced} by the {setting} of "
            "its generation_config.json; say which with --target-language",
            id="languages-disagree",
        )
    set_languages(model, tokenizer, entry, None, target or forced, where)


def _require_prefix(config: Any, tokenizer: Any, where: str) -> None:
    """Check that a model which reads its task from a prefix has one, even an empty one."""
    if tokenizer.init_kwargs.get(PREFIX) is not None:
        return
    codes = sorted(set(text_codes(tokenizer).values()))
    if len(codes) > 1:
        raise target_missing(where, codes, "or give --prefix '' where the texts begin with codes")
    tasks = getattr(config, "task_specific_params", None)
    settings = tasks.values() if isinstance(tasks, dict) else ()
    prefixes = [x["prefix"] for x in settings if isinstance(x, dict) and x.get("prefix")]
    if prefixes:
        raise InputError(
            f"{where} reads its task from a prefix (task_specific_params of its config.json has "
            f"{_first(map(repr, prefixes))}); give it with --prefix, or --prefix '' for a model "
            "that needs none or texts that begin with it",
            id="prefix-missing",
        )


def target_missing(
    where: str, known: Sequence[str], more: str = "and the other with --source-language"
) -> InputError:
    """The error where nothing says which language to translate into."""
    return InputError(
        f"{where} translates into {len(known)} languages ({_first(known)}), and nothing says "
        f"which; name it with --target-language, {more}",
        id="target-language-missing",
    )


def _first(names: Iterable[str], most: int = 4) -> str:
    first = list(islice(names, most + 1))
    return f"{', '.join(first[:most])}{', …' if len(first) > most else ''}"
