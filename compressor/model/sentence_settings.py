"""Settings of sentence-transformers: `modules.json`, and the files beside it.

The tables have all settings that are followed or change no answer; others are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from compressor.errors import InputError
from compressor.model.reading import read_entries, read_settings, unsupported
from compressor.storage.input_files import inner_path, shown

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
SENTENCE_TRANSFORMER, CROSS_ENCODER = "SentenceTransformer", "CrossEncoder"
PACKAGE = "sentence_transformers."
# Names of the encoder's settings, of which the first that exists is read.
_ENCODER_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
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


# Setting of a file -> type of its values; `Any` is of those that change no answer.
_SIZE = Annotated[int, Field(ge=1)]
_NOTHING = Annotated[dict[str, Any], Field(max_length=0)]
_SETTINGS: Mapping[str, Any] = {
    "model_type": Literal["SentenceTransformer", "CrossEncoder"],
    "prompts": dict[str, str | None],
    "default_prompt_name": str,
    "similarity_fn_name": Literal["cosine", "dot", "euclidean", "manhattan"],
    "truncate_dim": _SIZE,
    "activation_fn": str,
    **dict.fromkeys(("__version__", "requirements", "keep_in_fp32_modules"), Any),
}
_LENGTH = "model_max_length"
_RUN: Mapping[str, Any] = dict.fromkeys(
    ("attn_implementation", "dtype", "torch_dtype", "use_fast", "trust_remote_code"), Any
)
# Arguments of model, tokenizer and configuration, by their names before version 5.4 too.
_ARGUMENTS: Mapping[str, Any] = {
    **dict.fromkeys(("model_kwargs", "model_args", "config_kwargs", "config_args"), _RUN),
    **{key: {**_RUN, _LENGTH: _SIZE} for key in ("processor_kwargs", "tokenizer_args")},
}
_ENCODER: Mapping[str, Any] = {
    "max_seq_length": _SIZE,
    "do_lower_case": bool,
    "unpad_inputs": Any,
    **_ARGUMENTS,
    **dict.fromkeys(("query_length", "document_length", "query_expansion"), _NOTHING),
    **dict.fromkeys(("tokenizer_name_or_path", "processing_kwargs"), _NOTHING),
    **dict.fromkeys(("transformer_task", "modality_config", "module_output_name"), Any),
}
# The last three of these, by the kind of model.
_ENCODERS: Mapping[str, Mapping[str, Any]] = {
    kind: {
        "transformer_task": task,
        "modality_config": {"text": {"method": "forward", "method_output_name": output}},
        "module_output_name": vectors,
    }
    for kind, task, output, vectors in (
        (SENTENCE_TRANSFORMER, "feature-extraction", "last_hidden_state", "token_embeddings"),
        (CROSS_ENCODER, "sequence-classification", "logits", "scores"),
    )
}
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
_MODE = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
_NAMES = dict.fromkeys(("module_input_name", "module_output_name"), Literal["sentence_embedding"])
# Kind of module behind the encoder -> the settings in its config.json.
MODULE_FILES: Mapping[str, Mapping[str, Any]] = {
    "Pooling": {
        "pooling_mode": _MODE | list[_MODE],
        "include_prompt": bool,
        **dict.fromkeys(EARLIER_MODES, bool),
        **dict.fromkeys(("embedding_dimension", "word_embedding_dimension"), Any),
    },
    "Dense": {
        "in_features": int,
        "out_features": _SIZE,
        "bias": bool,
        "activation_function": str,
        "use_residual": bool,
        **_NAMES,
    },
    "LayerNorm": {"dimension": int},
    "Normalize": _NAMES,
    "Dropout": {"dropout": Any},  # does nothing to a trained model
}
_ENTRY = ("idx", "name", "path", "type")  # of `MODULES`
_MALFORMED = "sentence-file-malformed"


@dataclass(frozen=True)
class SentenceSettings:
    """Settings in the files; the defaults are those of a checkpoint without them."""

    kind: str = SENTENCE_TRANSFORMER  # or `CROSS_ENCODER`
    max_tokens: int | None = None  # special ones included; None: what the tokenizer allows
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)  # by name
    default_prompt: str = ""
    similarity: str = "cosine"
    truncate: int | None = None  # how many numbers of an embedding are kept
    activation: str | None = None  # path of the class that turns logits into scores
    modules: Sequence[tuple[str, str]] = ()  # kind and folder, in the order in which they run


def read_sentence_settings(directory: Path) -> SentenceSettings | None:
    """Read the settings of sentence-transformers.

    Args:
        directory: of a checkpoint.

    Returns:
        The settings; None where there is no `modules.json`.

    Raises:
        InputError: a file is malformed, or a setting is not supported.
    """
    if not (directory / MODULES).exists():
        return None
    path, encoder_path = directory / SETTINGS, encoder_settings_file(directory)
    values = read_settings(path, _SETTINGS, _MALFORMED)
    encoder = read_settings(encoder_path, _ENCODER, _MALFORMED)
    modules = read_entries(directory / MODULES, _ENTRY, _MALFORMED, _module)
    kind = values.get("model_type", SENTENCE_TRANSFORMER)
    # A prompt that is null, or one of these two that is missing, is an empty one.
    prompts = dict.fromkeys(("query", "document") if kind == SENTENCE_TRANSFORMER else (), "")
    prompts |= {name: text or "" for name, text in values.get("prompts", {}).items()}
    default = values.get("default_prompt_name")
    default_prompt = "" if default is None else prompts.get(default)
    if default_prompt is None or (default_prompt and kind == CROSS_ENCODER):
        reason = "a cross-encoder has none" if default_prompt else "prompts lacks it"
        raise unsupported(path, "default_prompt_name", default, reason)
    max_tokens, lower_case = _encoder_settings(encoder, kind, encoder_path)
    _require_order(modules, kind, directory)
    return SentenceSettings(
        kind=kind,
        max_tokens=max_tokens,
        lower_case=lower_case,
        prompts=prompts,
        default_prompt=default_prompt,
        similarity=values.get("similarity_fn_name", "cosine"),
        truncate=values.get("truncate_dim"),
        activation=values.get("activation_fn"),
        modules=modules,
    )


def _encoder_settings(values: dict[str, Any], kind: str, path: Path) -> tuple[int | None, bool]:
    """The most tokens of a text, and whether texts are lower-cased."""
    lengths = [values.get("max_seq_length"), *(values.get(x, {}).get(_LENGTH) for x in _ARGUMENTS)]
    length = next((x for x in reversed(lengths) if x is not None), None)
    # The package takes a file without a task for a sentence encoder's.
    usual = {"transformer_task": _ENCODERS[SENTENCE_TRANSFORMER]["transformer_task"]}
    for key, value in (usual | values).items():
        if value != _ENCODERS[kind].get(key, value):
            raise unsupported(path, key, value, f"a {kind} has {_ENCODERS[kind][key]}")
    return length, values.get("do_lower_case", False)


def _module(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and folder of a module."""
    kind, folder = str(entry["type"]), str(entry["path"])
    kind = kind.rpartition(".")[2] if kind.startswith(PACKAGE) else kind
    return kind, inner_path(folder) if folder else ""


def _require_order(modules: Sequence[tuple[str, str]], model_kind: str, directory: Path) -> None:
    kinds = [kind for kind, _ in modules]
    wanted, behind = ["Transformer"], set[str]()
    if model_kind == SENTENCE_TRANSFORMER:
        wanted, behind = ["Transformer", "Pooling"], {*MODULE_FILES} - {"Pooling"}
    is_in_order = kinds[: len(wanted)] == wanted and behind.issuperset(kinds[len(wanted) :])
    if not is_in_order or modules[0][1]:
        more = f", and any number of {', '.join(sorted(behind))} behind" if behind else ""
        raise InputError(
            f"{directory / MODULES} lists {', '.join(kinds)}; supported are "
            f"{' and '.join(wanted)}, in this order{more}, the first with its files in {directory} "
            'and the path ""',
            id="sentence-modules-unsupported",
        )


def encoder_settings_file(directory: Path) -> Path:
    """The file with the settings of the module Transformer, which may be missing."""
    paths = [directory / name for name in _ENCODER_SETTINGS]
    return next(filter(Path.exists, paths), paths[0])


def is_cross_encoder(config: Any) -> bool:
    """Whether a model's configuration says that it is a cross-encoder."""
    return isinstance(getattr(config, _IN_CONFIG, None), dict) or hasattr(config, _EARLIEST)


def note_cross_encoder(config: Any, settings: SentenceSettings | None) -> None:
    """Copy what other files say about a cross-encoder into its configuration, which is saved."""
    if settings is not None and settings.kind == CROSS_ENCODER:
        noted = dict(getattr(config, _IN_CONFIG, None) or {})
        if settings.activation is not None:
            noted[_ACTIVATION] = settings.activation
        setattr(config, _IN_CONFIG, noted)


def activation_of(config: Any) -> str:
    """`IDENTITY` or `SIGMOID`, which turns a model's one logit into its score."""
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
