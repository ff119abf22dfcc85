"""Settings of sentence-transformers beside modules and weights.

Each is followed, known to change no answer, or refused by name; one that is not known here may come
from a newer version, and is refused, too. `tests/model/test_sentence_transformers.py` compares the
tables with the package.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compressor.errors import InputError
from compressor.storage.input_files import read_json

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
SENTENCE_TRANSFORMER, CROSS_ENCODER = "SentenceTransformer", "CrossEncoder"
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
# Names of the encoder's settings, of which the first that exists is read.
ENCODER_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)

# Keys of `SETTINGS`, and of the encoder's settings: those that are followed, and those that change
# no answer.
SETTINGS_KEYS = {
    "model_type", "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim",
    "activation_fn",
} | {"__version__", "requirements", "keep_in_fp32_modules"}  # fmt: skip
ENCODER_KEYS = {"max_seq_length", "do_lower_case"} | {"unpad_inputs"}
# Keys of the encoder's settings that may hold nothing.
ENCODER_EMPTY = {
    "query_length", "document_length", "query_expansion", "tokenizer_name_or_path",
    "processing_kwargs",
}  # fmt: skip
# Keys of arguments, and what may be among them: what changes no answer, and the length of a text,
# which is followed.
_LENGTH = "model_max_length"
ENCODER_KWARGS: Mapping[str, Collection[str]] = {
    "model_kwargs": {"attn_implementation", "dtype", "torch_dtype", "trust_remote_code"},
    "processor_kwargs": {_LENGTH, "use_fast", "trust_remote_code"},
    "config_kwargs": {"trust_remote_code"},
}
# Their names before version 5.4.
EARLIER_KWARGS = {
    "model_args": "model_kwargs",
    "tokenizer_args": "processor_kwargs",
    "config_args": "config_kwargs",
}
# Kind of model -> what its encoder computes of a text.
_ENCODERS = {
    SENTENCE_TRANSFORMER: ("feature-extraction", "last_hidden_state", "token_embeddings"),
    CROSS_ENCODER: ("sequence-classification", "logits", "scores"),
}


@dataclass(frozen=True)
class SentenceSettings:
    """Settings in the files; the defaults are those of a checkpoint without them.

    Args:
        kind: `SENTENCE_TRANSFORMER` or `CROSS_ENCODER`.
        max_tokens: the most tokens of a text, special ones included; None: what tokenizer and
            positions allow.
        lower_case: whether texts are lower-cased before all else.
        prompts: name -> what a text begins with if that prompt is asked for.
        default_prompt: what it begins with otherwise.
        similarity: how embeddings are compared, one of `SIMILARITIES`.
        truncate: how many numbers of an embedding are kept; None: all.
        activation: path of the class that turns a cross-encoder's logits into scores.
    """

    kind: str = SENTENCE_TRANSFORMER
    max_tokens: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    similarity: str = "cosine"
    truncate: int | None = None
    activation: str | None = None


def read_settings(directory: Path) -> SentenceSettings | None:
    """The settings of a checkpoint with `modules.json`; None for any other."""
    if not (directory / MODULES).exists():
        return None
    path = directory / SETTINGS
    values = read_object(path)
    kind = values.get("model_type", SENTENCE_TRANSFORMER)
    if kind not in _ENCODERS:
        raise InputError(
            f"{path} describes a {shown(kind)}; supported are the models {' and '.join(_ENCODERS)} "
            "of sentence-transformers",
            id="sentence-modules-unsupported",
        )
    for key in values.keys() - SETTINGS_KEYS:
        raise unsupported(path, key, values[key])
    prompts, default = _prompts(values, kind, path)
    similarity = values.get("similarity_fn_name") or "cosine"
    if similarity not in SIMILARITIES:
        raise unsupported(path, "similarity_fn_name", similarity)
    activation = values.get("activation_fn")
    if not isinstance(activation, str | None):
        raise malformed(path, f"activation_fn is {shown(activation)}")
    tokens, lower_case = _encoder_settings(directory, kind)
    return SentenceSettings(
        kind=kind,
        max_tokens=tokens,
        lower_case=lower_case,
        prompts=prompts,
        default_prompt=default,
        similarity=similarity,
        truncate=_size(values, "truncate_dim", path),
        activation=activation,
    )


def _prompts(values: Mapping[str, Any], kind: str, path: Path) -> tuple[dict[str, str], str]:
    """The prompts by name, and the default one."""
    named = values.get("prompts") or {}
    if not isinstance(named, dict) or not all(isinstance(x, str | None) for x in named.values()):
        raise malformed(path, f"prompts is {shown(named)}, not an object of texts")
    # A prompt that is null, or one of these two that is missing, is an empty one.
    prompts = dict.fromkeys(("query", "document") if kind == SENTENCE_TRANSFORMER else (), "")
    prompts |= {name: text or "" for name, text in named.items()}
    default = values.get("default_prompt_name")
    if default is None:
        return prompts, ""
    if default not in prompts:
        raise malformed(path, f"default_prompt_name is {shown(default)}, which prompts lacks")
    if kind == CROSS_ENCODER and prompts[default]:
        raise unsupported(path, "default_prompt_name", default)
    return prompts, prompts[default]


def _encoder_settings(directory: Path, kind: str) -> tuple[int | None, bool]:
    """The most tokens of a text, and whether texts are lower-cased."""
    path = encoder_settings_file(directory)
    values = read_object(path)
    task, output, vectors = _ENCODERS[kind]
    fixed = {
        "transformer_task": task,
        "modality_config": {"text": {"method": "forward", "method_output_name": output}},
        "module_output_name": vectors,
    }
    if kind == CROSS_ENCODER and "transformer_task" not in values:
        raise malformed(path, f"transformer_task is not {task}, as of a {kind}")
    kwargs: dict[str, Any] = {}
    for key, value in values.items():
        name = EARLIER_KWARGS.get(key, key)
        if name in ENCODER_KWARGS:
            if not isinstance(value, dict | None):
                raise malformed(path, f"{key} is {shown(value)}")
            kwargs |= value or {}
            for inner in (value or {}).keys() - ENCODER_KWARGS[name]:
                raise unsupported(path, f"{inner} of {key}", kwargs[inner])
        elif key in ENCODER_EMPTY and value in (None, {}):
            continue
        elif key not in ENCODER_KEYS and (key not in fixed or value != fixed[key]):
            raise unsupported(path, key, value)
    lower_case = values.get("do_lower_case") or False
    if not isinstance(lower_case, bool):
        raise malformed(path, f"do_lower_case is {shown(lower_case)}")
    return _size(kwargs, _LENGTH, path) or _size(values, "max_seq_length", path), lower_case


def _size(values: Mapping[str, Any], key: str, path: Path) -> int | None:
    value = values.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise malformed(path, f"{key} is {shown(value)}, not a number above 0")
    return value


def encoder_settings_file(directory: Path) -> Path:
    """The file with the settings of the module Transformer, which may be missing."""
    paths = [directory / name for name in ENCODER_SETTINGS]
    return next((path for path in paths if read_object(path)), paths[0])


def read_object(path: Path, needed: bool = False) -> Mapping[str, Any]:
    """As `read_contents`, an object; empty where the file is missing and not `needed`."""
    if not path.exists() and not needed:
        return {}
    values = read_contents(path)
    if not isinstance(values, dict):
        raise malformed(path, "it is not a JSON object")
    return values


def read_contents(path: Path) -> Any:
    """Contents of a JSON file; raises InputError where it is missing or cannot be read."""
    try:
        return read_json(path)
    except OSError as error:
        raise InputError(
            f"cannot read {path}, which {MODULES} needs: {error.strerror}; get the checkpoint "
            "again, with all its folders",
            id="sentence-file-missing",
        ) from error
    except ValueError as error:
        raise malformed(path, str(error)) from error


def malformed(path: Path, reason: str) -> InputError:
    """The error for a file that cannot be understood."""
    return InputError(
        f"{path} does not describe modules of sentence-transformers: {reason}; get the checkpoint "
        "again",
        id="sentence-file-malformed",
    )


def unsupported(path: Path, key: str, value: Any) -> InputError:
    """The error for a setting that is not followed."""
    return InputError(
        f"{path} sets {key} to {shown(value)}, which is not supported; remove it there if the "
        "model's answers do not depend on it",
        id="sentence-settings-unsupported",
    )


def shown(value: Any) -> str:
    """A value of a file, for messages."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
