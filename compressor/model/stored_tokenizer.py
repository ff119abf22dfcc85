"""Opening a tokenizer so that it does what the `tokenizer.json` beside it says.

Most tokenizer classes of transformers 5 take the vocabulary from that file, and build the rest of
the pipeline anew (`TokenizersBackend.convert_to_native_format`): a normalizer, a pre-tokenizer or a
decoder of its own is lost. transformers 4, and all other readers, follow the file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models

from compressor.model.difficult_texts import difficult_texts, evenly_spread
from compressor.model.modes import quiet_transformers
from compressor.model.reading import read_object
from compressor.storage.input_files import shown

SETTINGS = "tokenizer_config.json"
PLAIN_CLASS = "TokenizersBackend"  # which reads the file as it is
# Setting beside `PLAIN_CLASS`: the class that knows the tokens of a translator's languages.
LANGUAGE_CLASS = "language_tokenizer_class"
_LANGUAGE_CLASSES = ("MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer")
# Setting that wins over the file, in transformers 4 and 5 -> its name in a part of the file.
_STATED = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
    "add_prefix_space": "add_prefix_space",
    "trim_offsets": "trim_offsets",
}
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_DECODED = 512  # tokens


def open_tokenizer(directory: Path, trust_remote_code: bool = False, writes: bool = False) -> Any:
    """Open the tokenizer of a directory as transformers does, with the pipeline of its own file.

    Of a fast one, `stored_limits` says how the file cuts and pads, `follows_file` whether its
    pipeline is another than its class builds, and `difference` what that changes (mostly nothing).

    Args:
        directory: of the checkpoint.
        trust_remote_code: whether transformers may run the tokenizer's own code.
        writes: the model writes texts, so that decoding counts, and pairs do not.

    Raises:
        Exception: whatever transformers trips over in the files.
    """
    path = directory / SETTINGS
    stated = read_object(path, "tokenizer-unreadable") if path.exists() else {}
    with quiet_transformers():
        tokenizer = _class_of(stated).from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
        remember_limits(tokenizer)
        if _is_rebuilt(tokenizer) and any(directory.glob("tokenizer.*json")):
            _follow_file(tokenizer, directory, stated, writes)
    return tokenizer


def remember_limits(tokenizer: Any) -> None:
    """Note how a fast tokenizer's own file cuts and pads, before a call changes that."""
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        tokenizer.stored_limits = backend.truncation, backend.padding


def difference_of(tokenizer: Any) -> str:
    """How texts would be read if the class's own pipeline were followed; empty for the same way."""
    return str(getattr(tokenizer, "difference", ""))


def keep_pipeline(tokenizer: Any) -> None:
    """Have a fast tokenizer saved so that transformers opens it with its pipeline as it is now."""
    tokenizer.follows_file = True
    # What the class says of its own pipeline, and transformers 4 would apply to this one.
    for name in _STATED:
        tokenizer.init_kwargs.pop(name, None)
    state = _state(tokenizer.backend_tokenizer.pre_tokenizer)
    if "add_prefix_space" in state:
        tokenizer.add_prefix_space = state["add_prefix_space"]
        tokenizer.init_kwargs["add_prefix_space"] = state["add_prefix_space"]


def save_pipeline(tokenizer: Any, directory: Path) -> None:
    """Name the class that reads the file as it is, in what transformers has saved, if need be."""
    if not getattr(tokenizer, "follows_file", False):
        return
    path, name = directory / SETTINGS, type(tokenizer).__name__
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["model_input_names"] = list(tokenizer.model_input_names)
    settings["tokenizer_class"] = PLAIN_CLASS
    if name in _LANGUAGE_CLASSES:
        settings[LANGUAGE_CLASS] = name
    text = json.dumps(settings, ensure_ascii=False, indent=1)
    path.write_text(f"{text}\n", encoding="utf-8")


def _class_of(stated: Mapping[str, Any]) -> Any:
    name = stated.get(LANGUAGE_CLASS)
    if name is None:
        return transformers.AutoTokenizer
    if name not in _LANGUAGE_CLASSES:
        known = " or ".join(_LANGUAGE_CLASSES)
        raise ValueError(f"{LANGUAGE_CLASS} in {SETTINGS} is {shown(name, 40)}, not {known}")
    return getattr(transformers, name)


def _is_rebuilt(tokenizer: Any) -> bool:
    """Whether its class builds a pipeline of its own; a checkpoint's own code does as it likes."""
    kind: Any = type(tokenizer)
    plain = getattr(transformers, PLAIN_CLASS)
    ours = kind.__module__.startswith("transformers.")
    return ours and issubclass(kind, plain) and kind is not plain


def _follow_file(tokenizer: Any, directory: Path, stated: Mapping[str, Any], writes: bool) -> None:
    """Give a tokenizer the file's pipeline, in place, unless its own is the same."""
    tokens = tokenizer.special_tokens_map
    tokens = {**tokens, "extra_special_tokens": [*tokenizer.extra_special_tokens]}
    plain = getattr(transformers, PLAIN_CLASS)
    stored = plain.from_pretrained(directory, local_files_only=True, **tokens)
    built, file = tokenizer.backend_tokenizer, stored.backend_tokenizer
    _apply(stated, file)
    if hasattr(tokenizer, "set_src_lang_special_tokens"):
        # The language is a setting, which transformers 4, too, puts in place of the file's.
        file.post_processor = built.post_processor
    texts, types = difficult_texts(stored), "token_type_ids" in tokenizer.model_input_names
    ids = evenly_spread(range(len(stored)), _DECODED if writes else 0)
    wanted, got = (_answers(x, texts, types, ids) for x in (file, built))
    parts = _parts_that_differ(file, built)
    # What texts these two change depends on the texts.
    if wanted == got and not {"normalizer", "pre-tokenizer"} & {*parts}:
        return
    tokenizer._tokenizer = file
    keep_pipeline(tokenizer)
    changed = [a[0] for a, b in zip(wanted, got, strict=True) if a[1] != b[1]]
    if changed and LANGUAGE_CLASS not in stated:  # else it was saved to be followed
        plain_texts = (x for x in changed if isinstance(x, str) and x.strip() and x.isprintable())
        text = next(plain_texts, changed[0])
        tokenizer.difference = (
            f"the tokenizer follows tokenizer.json, whose {_join(parts)} transformers "
            f"{transformers.__version__} replaces by those of {type(tokenizer).__name__}, which "
            f"reads {shown(text, 40)} otherwise"
        )


def _apply(stated: Mapping[str, Any], backend: Tokenizer) -> None:
    """Set in the pipeline, in place, what the settings say; null says nothing."""
    values = {field: stated[key] for key, field in _STATED.items() if stated.get(key) is not None}
    for name in _PARTS:
        state = _state(getattr(backend, name))
        changed = {field: x for field, x in values.items() if state.get(field, x) != x}
        if changed:
            # The library makes parts of JSON, but for whole tokenizers alone.
            empty = json.loads(Tokenizer(models.BPE()).to_str())
            made = Tokenizer.from_str(json.dumps({**empty, name: {**state, **changed}}))
            setattr(backend, name, getattr(made, name))


def _state(part: Any) -> dict[str, Any]:
    """A part of a pipeline as `tokenizer.json` has it; empty for none."""
    return {} if part is None else json.loads(part.__getstate__())


def _answers(
    backend: Tokenizer, texts: Sequence[str], types: bool, ids: Sequence[int]
) -> list[tuple[Any, Any, Any]]:
    """(text, what a model reads, where its tokens are in the text); and texts of the tokens `ids`.

    Pairs of texts, too, if there are no tokens to decode.
    """
    backend.no_truncation()
    backend.no_padding()
    seconds = [] if ids else [*texts[7:], *texts[:7]]
    rows: list[tuple[str, str | None]] = [(text, None) for text in texts]
    rows += zip(texts, seconds, strict=False)
    answers: list[tuple[Any, Any, Any]] = []
    for text, second in rows:
        try:
            encoded = backend.encode(text, second)
        except Exception:  # noqa: BLE001 # without an unknown token it raises plain Exception
            answers.append((text, None, None))
            continue
        read = encoded.ids, encoded.type_ids if types else None
        answers.append((text, read, encoded.offsets))
    shuffled = random.Random(0).sample(ids, len(ids))
    for row in (shuffled[i : i + 8] for i in range(0, len(ids), 8)):
        answers.append((row, backend.decode(row), None))
    return answers


def _parts_that_differ(file: Tokenizer, built: Tokenizer) -> list[str]:
    """Name the parts that differ in two pipelines."""
    parts = [
        name.replace("_", "-")
        for name in _PARTS
        if _state(getattr(file, name)) != _state(getattr(built, name))
    ]
    if repr(file.get_added_tokens_decoder()) != repr(built.get_added_tokens_decoder()):
        parts.append("added tokens")
    return parts or ["model"]


def _join(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
