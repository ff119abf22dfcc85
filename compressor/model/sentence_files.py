"""The layout of sentence-transformers: `modules.json`, and a folder for each module.

The encoder is at the root of the checkpoint; behind it come a pooling, and any number of dense
layers and normalizations. Modules are known by the names of their classes alone: no code of a
checkpoint runs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from compressor.errors import InputError
from compressor.model.sentence_head import (
    ACTIVATIONS,
    POOLINGS,
    DenseLayer,
    NormLayer,
    SentenceHead,
    UnitLength,
    head_of,
)
from compressor.model.sentence_settings import (
    CROSS_ENCODER,
    MODULES,
    SETTINGS,
    SentenceSettings,
    encoder_settings_file,
    malformed,
    read_contents,
    read_object,
    read_settings,
    shown,
    unsupported,
)
from compressor.model.stored_weights import PICKLE, WEIGHTS, stored_tensors, weight_files
from compressor.storage.input_files import inner_path

_PACKAGE = "sentence_transformers."
# The flags that say the pooling in files before version 5.4, in the order of their results.
EARLIER_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_EMBEDDING = "sentence_embedding"  # the value that modules behind the pooling read and write
_NAMES = ("module_input_name", "module_output_name")
# Kind of module -> the keys of its config.json, all of which are read.
KEYS: Mapping[str, frozenset[str]] = {
    "Pooling": frozenset(
        ("embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt")
    ).union(EARLIER_MODES),
    "Dense": frozenset(
        ("in_features", "out_features", "bias", "activation_function", "use_residual", *_NAMES)
    ),
    "LayerNorm": frozenset(("dimension",)),
    "Normalize": frozenset(_NAMES),
    "Dropout": frozenset(("dropout",)),  # does nothing to a trained model
}
_ENTRY = {"idx", "name", "path", "type", "kwargs"}


def read_sentence_settings(directory: Path) -> SentenceSettings | None:
    """The settings of a checkpoint with `modules.json`, whose modules are supported; else None."""
    settings = read_settings(directory)
    if settings is not None:
        _modules(directory, settings)
    return settings


def read_head(
    directory: Path, width: int, settings: SentenceSettings | None, allow_pickle: bool
) -> SentenceHead:
    """The head of an encoder of this width, with its weights.

    Args:
        settings: of the checkpoint; None: it has no `modules.json`, and the mean of the token
            vectors is the embedding.
    """
    if settings is None:
        return SentenceHead(width)
    _, (_, pooling), *others = _modules(directory, settings)
    modes = _pooling(directory / pooling / "config.json", settings)
    width *= len(modes)
    layers: list[nn.Module] = []
    for kind, folder in others:
        path = directory / folder / "config.json"
        values = _config(path, kind)
        if kind == "Normalize":
            layers.append(UnitLength())
        elif kind != "Dropout":
            with torch.device("meta"):  # no memory is taken before sizes are compared
                layer, width = _layer(kind, values, path, width)
            _load(layer, path.parent, allow_pickle)
            layers.append(layer)
    return SentenceHead(width, modes, layers, settings)


def write_settings(source: Path, directory: Path) -> None:
    """Copy the files of sentence-transformers at the root of a checkpoint beside the encoder."""
    if (source / MODULES).exists():
        for path in (source / MODULES, source / SETTINGS, encoder_settings_file(source)):
            if path.exists():
                shutil.copyfile(path, directory / path.name)


def write_layout(model: nn.Module, tokens: int, source: Path, directory: Path) -> None:
    """Write all that sentence-transformers needs beside the encoder in `directory`.

    Args:
        tokens: the most of a text.
        source: directory of the checkpoint that the model was made from.
    """
    head = head_of(model)
    if not (source / MODULES).exists():
        names = {"": "models.Transformer", "1_Pooling": "models.Pooling"}
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": f"{_PACKAGE}{kind}"}
            for i, (path, kind) in enumerate(names.items())
        ]
        config: Any = model.config
        modes = {name: mode in head.pooling for name, mode in EARLIER_MODES.items()}
        pooling = {"word_embedding_dimension": config.hidden_size, **modes}
        _write(directory / MODULES, modules)
        _write(encoder_settings_file(directory), {"max_seq_length": tokens, "do_lower_case": False})
        _write(directory / "1_Pooling" / "config.json", pooling)
        return
    write_settings(source, directory)
    layers = iter(head.layers)
    for kind, folder in _modules(source, head.settings)[1:]:
        (directory / folder).mkdir(exist_ok=True)
        path = Path(folder) / "config.json"
        if (source / path).exists():
            shutil.copyfile(source / path, directory / path)
        if kind in ("Pooling", "Dropout"):
            continue
        state = {name: x.contiguous() for name, x in next(layers).state_dict().items()}
        if state:
            save_file(state, directory / folder / WEIGHTS, metadata={"format": "pt"})


def _write(path: Path, contents: Sequence[Any] | Mapping[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")


def _modules(directory: Path, settings: SentenceSettings) -> list[tuple[str, str]]:
    """Kind and folder of the modules in the order of the file, which is the one they run in.

    The kind of a class of sentence-transformers is its name, of another class its whole path.
    """
    path = directory / MODULES
    listed = read_contents(path)
    try:
        names = [str(entry["name"]) for entry in listed]
        modules = []
        for entry in listed:
            kind, folder = str(entry["type"]), str(entry["path"])
            kind = kind.rpartition(".")[2] if kind.startswith(_PACKAGE) else kind
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
    wanted = ["Transformer"] if settings.kind == CROSS_ENCODER else ["Transformer", "Pooling"]
    behind = {*KEYS} - {"Pooling"} if settings.kind != CROSS_ENCODER else set()
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


def _config(path: Path, kind: str) -> Mapping[str, Any]:
    values = read_object(path, needed=kind not in ("Normalize", "Dropout"))
    for key in values.keys() - KEYS[kind]:
        raise unsupported(path, key, values[key])
    for key in _NAMES:
        if values.get(key, _EMBEDDING) not in (_EMBEDDING, None):
            raise unsupported(path, key, values[key])
    return values


def _pooling(path: Path, settings: SentenceSettings) -> tuple[str, ...]:
    values = _config(path, "Pooling")
    chosen = values.get("pooling_mode", [m for k, m in EARLIER_MODES.items() if values.get(k)])
    modes = [str(x) for x in chosen] if isinstance(chosen, list) else [str(chosen)]
    modes = modes or ["mean"]
    if not {*modes} <= POOLINGS.keys():
        raise InputError(
            f"{path} asks for the pooling {' and '.join(modes)}; supported are "
            f"{', '.join(POOLINGS)}",
            id="pooling-unsupported",
        )
    if not _flag(values, "include_prompt", True, path) and any(settings.prompts.values()):
        raise InputError(
            f"{path} sets include_prompt to false, and {SETTINGS} has prompts; leaving their "
            "tokens out of the pooling is not supported; remove them there if your texts have none",
            id="sentence-settings-unsupported",
        )
    return tuple(modes)


def _layer(kind: str, values: Mapping[str, Any], path: Path, width: int) -> tuple[nn.Module, int]:
    """A dense layer or a normalization for inputs of this width, and the width of its output."""
    inputs = values.get("in_features" if kind == "Dense" else "dimension")
    outputs = values.get("out_features", inputs)
    if inputs != width or type(outputs) is not int or outputs < 1:
        raise InputError(
            f"{path} describes a module with {shown(inputs)} inputs and {shown(outputs)} outputs, "
            f"and the modules before it give {width}; get the checkpoint again",
            id="weights-do-not-fit",
        )
    if kind == "LayerNorm":
        return NormLayer(width), width
    name = str(values.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = name.rpartition(".")[2]
    if activation not in ACTIVATIONS or name not in (
        f"torch.nn.{activation}",
        f"torch.nn.modules.activation.{activation}",
        "torch.nn.modules.linear.Identity",
    ):
        raise InputError(
            f"{path} asks for the activation {name[:60]}; supported are those of torch.nn "
            f"called {', '.join(ACTIVATIONS)}",
            id="activation-unsupported",
        )
    bias, residual = (_flag(values, x, x == "bias", path) for x in ("bias", "use_residual"))
    return DenseLayer(width, outputs, bias, activation, residual), outputs


def _load(layer: nn.Module, folder: Path, allow_pickle: bool) -> None:
    """Give a layer its stored weights, in float32."""
    file, *more = weight_files(folder, allow_pickle)
    if more:
        raise malformed(folder, "the weights of one layer are in several files")
    stored_tensors([file])  # raises if it is damaged
    if file.name == PICKLE:
        state = torch.load(file, map_location="cpu", weights_only=True)
    else:
        state = load_file(file)
    wanted = {name: tuple(value.shape) for name, value in layer.state_dict().items()}
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    if shapes != wanted:
        raise InputError(
            f"{folder} has weights of the shapes {shapes}, and by its config.json they should be "
            f"{wanted}; get the checkpoint again",
            id="weights-do-not-fit",
        )
    if not all(bool(value.isfinite().all()) for value in state.values()):
        raise InputError(
            f"a weight in {folder} is not a finite number; the checkpoint is damaged, or its "
            "training failed: give another one",
            id="weights-not-finite",
        )
    layer.to_empty(device="cpu").load_state_dict(state)


def _flag(values: Mapping[str, Any], key: str, default: bool, path: Path) -> bool:
    value = values.get(key, default)
    if not isinstance(value, bool):
        raise malformed(path, f"{key} is {shown(value)}, neither true nor false")
    return value
