"""The layout of sentence-transformers: `modules.json`, and a folder for each module.

The encoder is at the root of the checkpoint; behind it come a pooling, any number of dense layers,
and a normalization, if there is one. Only the names of their classes are looked at: no code of a
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
from torch import Tensor, nn

from compressor.errors import InputError
from compressor.model.sentence_head import ACTIVATIONS, HEAD, POOLINGS, DenseLayer, Layout, head_of
from compressor.model.stored_weights import PICKLE, WEIGHTS, stored_tensors, weight_files
from compressor.storage.input_files import inner_path, read_json

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
_ENCODER_SETTINGS = "sentence_bert_config.json"
_PACKAGE = "sentence_transformers.models"
_OLD_MODES = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
}
_WIDTH = "word_embedding_dimension"
Weights = Mapping[str, Tensor]


def read_layout(
    directory: Path, width: int, allow_pickle: bool = False
) -> tuple[Layout, list[Weights]]:
    """What follows the encoder, and the weights of its dense layers.

    A checkpoint without `modules.json` has its texts' embeddings made by `Layout`'s defaults.

    Args:
        width: of the encoder.

    Raises:
        InputError: a file is missing or malformed, or describes what is not supported.
    """
    path = directory / MODULES
    if not path.exists():
        return Layout(), []
    _require_plain_texts(directory)
    modules = _modules(path)
    kinds = [kind for kind, _ in modules]
    inner = kinds[2:-1] if kinds[-1] == "Normalize" else kinds[2:]
    if kinds[:2] != ["Transformer", "Pooling"] or set(inner) - {"Dense"}:
        raise InputError(
            f"{path} lists {', '.join(kinds)}; supported are Transformer, Pooling, any number of "
            "Dense, and Normalize, in this order",
            id="sentence-modules-unsupported",
        )
    if modules[0][1]:
        raise _malformed(path, "the Transformer is not at the root of the checkpoint")
    pooling, dense, weights = _pooling(directory / modules[1][1]), [], []
    for kind, name in modules[2:]:
        if kind == "Dense":
            layer, stored = _dense(directory / name, width, allow_pickle)
            dense.append(layer)
            weights.append(stored)
            width = layer.outputs
    tokens = _settings(directory / _ENCODER_SETTINGS).get("max_seq_length")
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        raise _malformed(directory / _ENCODER_SETTINGS, f"max_seq_length is {tokens!r:.40}")
    return Layout(pooling, tuple(dense), kinds[-1] == "Normalize", tokens), weights


def write_layout(model: nn.Module, tokens: int, source: Path, directory: Path) -> None:
    """Write all that sentence-transformers needs beside the encoder.

    Args:
        tokens: the most of a text.
        source: directory of the checkpoint that the model was made from.
        directory: where the encoder is.
    """
    head = head_of(model)
    kinds = ["Transformer", "Pooling", *["Dense"] * len(head.dense)]
    kinds += ["Normalize"] * head.layout.normalize
    paths = [f"{i}_{kind}" if i else "" for i, kind in enumerate(kinds)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{_PACKAGE}.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    _write(directory / MODULES, modules)
    _write(directory / _ENCODER_SETTINGS, {"max_seq_length": tokens, "do_lower_case": False})
    config: Any = model.config
    modes = {name: mode == head.layout.pooling for mode, name in _OLD_MODES.items()}
    _write(directory / "1_Pooling" / "config.json", {_WIDTH: config.hidden_size, **modes})
    for number, (layer, linear) in enumerate(zip(head.layout.dense, head.dense, strict=True), 2):
        folder = directory / f"{number}_Dense"
        kind = ACTIVATIONS[layer.activation]
        settings = {
            "in_features": layer.inputs,
            "out_features": layer.outputs,
            "bias": layer.bias,
            "activation_function": f"{kind.__module__}.{kind.__name__}",
        }
        _write(folder / "config.json", settings)
        state = {f"linear.{name}": x.contiguous() for name, x in linear.state_dict().items()}
        save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    if (source / SETTINGS).exists():
        shutil.copyfile(source / SETTINGS, directory / SETTINGS)


def is_of_head(name: str) -> bool:
    """Whether a weight is the head's, which has files of its own."""
    return name.startswith(f"{HEAD}.")


def _modules(path: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module, in order."""
    listed = _read(path)
    try:
        ordered = sorted(listed, key=lambda x: x["idx"])
        found = [(str(x["type"]).rpartition(".")[2], str(x["path"])) for x in ordered]
        for _, name in found:
            if name:
                inner_path(name)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _malformed(path, f"it is not a list of modules ({error})") from error
    if not found:
        raise _malformed(path, "it lists no modules")
    return found


def _pooling(folder: Path) -> str:
    settings = _settings(folder / "config.json", needed=True)
    named = settings.get("pooling_mode")
    if named is None:
        modes = {old: mode for mode, old in _OLD_MODES.items()}
        chosen = [
            modes.get(name, name)
            for name, value in settings.items()
            if name.startswith("pooling_mode_") and value
        ]
    else:
        chosen = [str(x) for x in named] if isinstance(named, list) else [str(named)]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise InputError(
            f"{folder / 'config.json'} asks for the pooling {' and '.join(chosen) or 'none'}; "
            f"supported is one of {', '.join(POOLINGS)}",
            id="pooling-unsupported",
        )
    return chosen[0]


def _dense(folder: Path, width: int, allow_pickle: bool) -> tuple[DenseLayer, Weights]:
    path = folder / "config.json"
    settings = _settings(path, needed=True)
    sizes = settings.get("in_features"), settings.get("out_features")
    activation = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    kind = activation.rpartition(".")[2]
    if kind not in ACTIVATIONS or not activation.startswith("torch.nn."):
        raise InputError(
            f"{path} asks for the activation {activation[:60]}; supported are those of torch.nn "
            f"called {', '.join(ACTIVATIONS)}",
            id="activation-unsupported",
        )
    bias = bool(settings.get("bias", True))
    stored = _dense_weights(folder, allow_pickle)
    shapes = {name: tuple(value.shape) for name, value in stored.items()}
    inputs, outputs = sizes
    wanted = {"weight": (outputs, inputs)} | ({"bias": (outputs,)} if bias else {})
    if inputs != width or shapes != wanted or not isinstance(outputs, int):
        raise InputError(
            f"{folder} has weights of the shapes {shapes}, and by its config.json and the modules "
            f"before they should be {wanted} for {width} inputs; get the checkpoint again",
            id="weights-do-not-fit",
        )
    if not all(bool(value.isfinite().all()) for value in stored.values()):
        raise InputError(
            f"a weight in {folder} is not a finite number; the checkpoint is damaged, or its "
            "training failed: give another one",
            id="weights-not-finite",
        )
    return DenseLayer(width, outputs, bias, kind), stored


def _dense_weights(folder: Path, allow_pickle: bool) -> Weights:
    file, *more = weight_files(folder, allow_pickle)
    if more:
        raise _malformed(folder, "the weights of one layer are in several files")
    stored_tensors([file])  # raises if it is damaged
    if file.name == PICKLE:
        state = torch.load(file, map_location="cpu", weights_only=True)
    else:
        state = load_file(file)
    return {name.removeprefix("linear."): value.float() for name, value in state.items()}


def _require_plain_texts(directory: Path) -> None:
    """Refuse settings that change texts before they are tokenized."""
    for name, key, what in (
        (_ENCODER_SETTINGS, "do_lower_case", "lower-cases texts before the tokenizer sees them"),
        (SETTINGS, "default_prompt_name", "puts a prompt before every text"),
    ):
        if _settings(directory / name).get(key):
            raise InputError(
                f"{directory / name} sets {key}, which {what}; that is not supported: remove it "
                "there if your texts come that way already",
                id="sentence-settings-unsupported",
            )


def _settings(path: Path, needed: bool = False) -> Mapping[str, Any]:
    if not path.exists() and not needed:
        return {}
    values = _read(path)
    if not isinstance(values, dict):
        raise _malformed(path, "it is not a JSON object")
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
        raise _malformed(path, str(error)) from error


def _malformed(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} does not describe modules of sentence-transformers: {reason}; get the checkpoint "
        "again",
        id="sentence-file-malformed",
    )


def _write(path: Path, contents: Sequence[Any] | Mapping[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
