"""Settings of sentence-transformers: `modules.json`, and the files beside it.

Each is followed, known to change no answer, or refused by name; one that is not known here may come
from a newer version, and is refused, too. `tests/model/test_sentence_transformers.py` compares the
tables with the package. Modules are known by the names of their classes alone: no code of a
checkpoint runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compressor.errors import InputError
from compressor.storage.input_files import inner_path, read_json, shown

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
SENTENCE_TRANSFORMER, CROSS_ENCODER = "SentenceTransformer", "CrossEncoder"
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
# Names of the encoder's settings, of which the first that exists is read.
ENCODER_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)

PACKAGE = "sentence_transformers."
# The flags that say the pooling in files before version 5.4, in the order of their results; the
# names in newer ones.
EARLIER_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
VALUE_NAMES = ("module_input_name", "module_output_name")
# Kind of module behind the encoder -> the keys of its config.json, all of which are read.
KEYS: Mapping[str, frozenset[str]] = {
    "Pooling": frozenset(
        ("embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt")
    ).union(EARLIER_MODES),
    "Dense": frozenset(
        ("in_features", "out_features", "bias", "activation_function", "use_residual", *VALUE_NAMES)
    ),
    "LayerNorm": frozenset(("dimension",)),
    "Normalize": frozenset(VALUE_NAMES),
    "Dropout": frozenset(("dropout",)),  # does nothing to a trained model
}
_ENTRY = {"idx", "name", "path", "type", "kwargs"}  # keys of a module in `MODULES`
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
# What turns a cross-encoder's logits into scores, in `config.json`: since version 4 under this key
# of an object of this name, before under a name of its own.
_IN_CONFIG, _ACTIVATION = "sentence_transformers", "activation_fn"
_EARLIEST = "sbert_ce_default_activation_function"
IDENTITY, SIGMOID = "identity", "sigmoid"
_ACTIVATION_PATHS = {
    "torch.nn.modules.linear.Identity": IDENTITY,
    "torch.nn.Identity": IDENTITY,
    "torch.nn.modules.activation.Sigmoid": SIGMOID,
    "torch.nn.Sigmoid": SIGMOID,
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
        modules: kind and folder of the modules in the order of `MODULES`, in which they run. The
            kind of a class of sentence-transformers is its name, of another class its whole path.
    """

    kind: str = SENTENCE_TRANSFORMER
    max_tokens: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    similarity: str = "cosine"
    truncate: int | None = None
    activation: str | None = None
    modules: Sequence[tuple[str, str]] = ()


def read_sentence_settings(directory: Path) -> SentenceSettings | None:
    """The settings of a checkpoint with `modules.json`; None for any other.

    Raises InputError for files that are malformed, modules and settings that are not supported.
    """
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
        modules=_read_modules(directory, kind),
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


def _read_modules(directory: Path, model_kind: str) -> list[tuple[str, str]]:
    path = directory / MODULES
    listed = _read(path)
    try:
        names = [str(entry["name"]) for entry in listed]
        modules = []
        for entry in listed:
            kind, folder = str(entry["type"]), str(entry["path"])
            kind = kind.rpartition(".")[2] if kind.startswith(PACKAGE) else kind
            modules.append((kind, inner_path(folder) if folder else ""))
        extra = [(k, v) for entry in listed for k, v in entry.items() if k not in _ENTRY]
        extra += [("kwargs", entry["kwargs"]) for entry in listed if entry.get("kwargs")]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise malformed(path, f"it is not a list of modules ({error})") from error
    if not modules or len(set(names)) < len(names):
        raise malformed(path, f"it has the modules {', '.join(names) or 'none'}")
    for key, value in extra:
        raise unsupported(path, key, value)
    kinds = [kind for kind, _ in modules]
    wanted, behind = ["Transformer"], set[str]()
    if model_kind == SENTENCE_TRANSFORMER:
        wanted, behind = ["Transformer", "Pooling"], {*KEYS} - {"Pooling"}
    if kinds[: len(wanted)] != wanted or set(kinds[len(wanted) :]) - behind:
        more = f", and any number of {', '.join(sorted(behind))} behind" if behind else ""
        raise InputError(
            f"{path} lists {', '.join(kinds)}; supported are {' and '.join(wanted)}, in this "
            f"order{more}; give another checkpoint",
            id="sentence-modules-unsupported",
        )
    if modules[0][1]:
        raise InputError(
            f"{path} has the Transformer in the folder {modules[0][1]}; move its files to "
            f'{directory}, and set its path to ""',
            id="sentence-modules-unsupported",
        )
    return modules


def encoder_settings_file(directory: Path) -> Path:
    """The file with the settings of the module Transformer, which may be missing."""
    paths = [directory / name for name in ENCODER_SETTINGS]
    return next((path for path in paths if read_object(path)), paths[0])


def read_object(path: Path, needed: bool = False) -> Mapping[str, Any]:
    """A JSON file's object; empty where the file is missing and not `needed`.

    Raises InputError where it cannot be read, or holds something else.
    """
    if not path.exists() and not needed:
        return {}
    values = _read(path)
    if not isinstance(values, dict):
        raise malformed(path, "it is not a JSON object")
    return values


def _read(path: Path) -> Any:
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


def is_cross_encoder(config: Any) -> bool:
    """Whether a model's configuration says that it is a cross-encoder."""
    return isinstance(getattr(config, _IN_CONFIG, None), dict) or hasattr(config, _EARLIEST)


def note_cross_encoder(config: Any, settings: SentenceSettings | None) -> None:
    """Copy what other files say about a cross-encoder into its configuration, in place.

    So it stays with the model. Before version 5.4 it was there anyhow.
    """
    if settings is not None and settings.kind == CROSS_ENCODER:
        noted = dict(getattr(config, _IN_CONFIG, None) or {})
        if settings.activation is not None:
            noted[_ACTIVATION] = settings.activation
        setattr(config, _IN_CONFIG, noted)


def activation_of(config: Any) -> str:
    """`IDENTITY` or `SIGMOID`, which turns a model's one logit into its score.

    Raises InputError for a cross-encoder with another activation.
    """
    if not is_cross_encoder(config) or config.num_labels != 1:
        return IDENTITY
    # As in `CrossEncoder.get_default_activation_fn`.
    settings = getattr(config, _IN_CONFIG, None)
    path = getattr(config, _EARLIEST, None)
    if isinstance(settings, dict):
        path = settings.get(_ACTIVATION, path)
    if path is None:
        return SIGMOID
    if path not in _ACTIVATION_PATHS:
        raise InputError(
            f"the cross-encoder's activation function is {shown(path)}; supported are "
            f"{', '.join(_ACTIVATION_PATHS)}: write one of these as {_ACTIVATION} in its settings",
            id="activation-unsupported",
        )
    return _ACTIVATION_PATHS[path]
