"""From token vectors to one embedding per text: pooling, the modules behind it, and their files.

An encoder with such a head stays a model of its class in transformers, with its weights at the root
of the checkpoint; its forward also gives `logits`, here the embeddings [batch, width]. Names,
computations and files are those of sentence-transformers, which has a folder for each module.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from compressor.errors import InputError
from compressor.model.location import PICKLE, WEIGHTS, stored_tensors, weight_files
from compressor.model.modeling_pruned import pruned_class
from compressor.model.sentence_settings import (
    EARLIER_MODES,
    KEYS,
    MODULES,
    PACKAGE,
    SETTINGS,
    VALUE_NAMES,
    SentenceSettings,
    encoder_settings_file,
    malformed,
    read_object,
    unsupported,
)
from compressor.storage.input_files import shown

HEAD = "sentence_head"
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Sigmoid": nn.Sigmoid,
}
_LEAST = 1e-9  # divisor of a mean over no tokens
_EMBEDDING = "sentence_embedding"  # the value that modules behind the pooling read and write


class DenseLayer(nn.Module):
    """A linear layer and its activation.

    Args:
        residual: the input is added to the output, projected where their sizes differ.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool, activation: str, residual: bool
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias)
        self.activation = _ACTIVATIONS[activation]()
        self.adds = residual
        if residual and inputs != outputs:
            self.residual = nn.Linear(inputs, outputs, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        output: Tensor = self.activation(self.linear(vectors))
        if not self.adds:
            return output
        return output + (self.residual(vectors) if hasattr(self, "residual") else vectors)


class NormLayer(nn.Module):
    """A layer normalization."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, vectors: Tensor) -> Tensor:
        return cast(Tensor, self.norm(vectors))


class UnitLength(nn.Module):
    """Division by the L2 norm."""

    def forward(self, vectors: Tensor) -> Tensor:
        return normalize(vectors, dim=-1)


class SentenceHead(nn.Module):
    """Pooling, the modules behind it, and the cut to some numbers.

    Args:
        width: of the vectors before they are cut.
        pooling: modes in `EARLIER_MODES`, whose results stand one after the other.
        layers: the modules behind it, in order.
        settings: which say where vectors are cut, and how embeddings are compared.
    """

    def __init__(
        self,
        width: int,
        pooling: tuple[str, ...] = ("mean",),
        layers: Iterable[nn.Module] = (),
        settings: SentenceSettings | None = None,
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.layers = nn.ModuleList(layers)
        self.settings = settings or SentenceSettings()
        self.width = min(width, self.settings.truncate or width)

    def forward(self, hidden: Tensor, real: Tensor) -> Tensor:
        """
        Args:
            hidden: [batch, tokens, width of the encoder].
            real: which tokens are no padding, [batch, tokens] bool.

        Returns:
            [batch, width of the embedding]
        """
        pooled = [_pool(mode, hidden, real[..., None]) for mode in self.pooling]
        vectors = pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)
        for layer in self.layers:
            vectors = layer(vectors)
        kept = self.settings.truncate
        return vectors if kept is None else vectors[:, :kept]


def _pool(mode: str, hidden: Tensor, real: Tensor) -> Tensor:
    """[batch, tokens, width] and which tokens are real [batch, tokens, 1] -> [batch, width]"""
    if mode == "cls":
        return hidden[:, 0]  # padding is on the right
    if mode == "max":
        return torch.where(real, hidden, torch.finfo(hidden.dtype).min).amax(1)
    if mode == "lasttoken":
        position = real.long().cumsum(1)
        return torch.where(real & (position == position[:, -1:]), hidden, 0.0).sum(1)
    weights = real.to(hidden.dtype)
    if mode == "weightedmean":
        weights = weights * weights.cumsum(1)
    total, divisor = (hidden * weights).sum(1), weights.sum(1).clamp_min(_LEAST)
    return total / (divisor.sqrt() if mode == "mean_sqrt_len_tokens" else divisor)


class _EncoderWithHead(nn.Module):
    def forward(self, *, attention_mask: Tensor, **inputs: Any) -> Any:
        """As in transformers, and `logits`, the embeddings [batch, width].

        Args:
            attention_mask: [batch, tokens] of 1 and 0, or [batch, 1, 1, tokens] to be added to
                attention scores: 0 at real tokens.
        """
        output = super().forward(attention_mask=attention_mask, **inputs)
        real = attention_mask > 0 if attention_mask.dim() == 2 else attention_mask[:, 0, 0] >= 0
        output["logits"] = self.get_submodule(HEAD)(output.last_hidden_state, real)
        return output


@cache
def _with_head(encoder: type[nn.Module]) -> type[nn.Module]:
    # Of the same name: a pruned checkpoint is opened by it (`modeling_pruned.pruned_class`).
    return type(encoder.__name__, (_EncoderWithHead, encoder), {"__module__": __name__})


def __getattr__(name: str) -> type[nn.Module]:
    """The class with a head for an encoder's, by its name, which pickles look up here."""
    if name.startswith("Pruned"):
        return _with_head(cast(Any, pruned_class(name)))
    if not name.startswith("_") and hasattr(transformers, name):
        return _with_head(getattr(transformers, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def head_of(model: nn.Module) -> SentenceHead:
    """The head of an encoder that has one."""
    head = model.get_submodule(HEAD)
    assert isinstance(head, SentenceHead)
    return head


def add_head(
    model: nn.Module, directory: Path, settings: SentenceSettings | None, allow_pickle: bool
) -> None:
    """Give an encoder its head with the weights that are stored for it, in place.

    Args:
        settings: of the checkpoint; None: it has no `modules.json`, and the mean of the token
            vectors is the embedding.
    """
    config: Any = model.config
    head = SentenceHead(config.hidden_size)
    if settings is not None:
        head = _read_head(directory, config.hidden_size, settings, allow_pickle)
    model.__class__ = _with_head(cast(Any, type(model)))
    model.add_module(HEAD, head)
    # Whoever counts multiply-adds has the configuration alone (`Task.head`).
    linear = [x for x in head.modules() if isinstance(x, nn.Linear)]
    config.dense_sizes = [[x.in_features, x.out_features] for x in linear]


def _read_head(
    directory: Path, width: int, settings: SentenceSettings, allow_pickle: bool
) -> SentenceHead:
    _, (_, pooling), *others = settings.modules
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


def _config(path: Path, kind: str) -> Mapping[str, Any]:
    values = read_object(path, needed=kind not in ("Normalize", "Dropout"))
    for key in values.keys() - KEYS[kind]:
        raise unsupported(path, key, values[key])
    for key in VALUE_NAMES:
        if values.get(key, _EMBEDDING) not in (_EMBEDDING, None):
            raise unsupported(path, key, values[key])
    return values


def _pooling(path: Path, settings: SentenceSettings) -> tuple[str, ...]:
    values = _config(path, "Pooling")
    chosen = values.get("pooling_mode", [m for k, m in EARLIER_MODES.items() if values.get(k)])
    modes = [str(x) for x in chosen] if isinstance(chosen, list) else [str(chosen)]
    modes = modes or ["mean"]
    if not {*modes} <= {*EARLIER_MODES.values()}:
        raise InputError(
            f"{path} asks for the pooling {' and '.join(modes)}; supported are "
            f"{', '.join(EARLIER_MODES.values())}",
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
    if activation not in _ACTIVATIONS or name not in (
        f"torch.nn.{activation}",
        f"torch.nn.modules.activation.{activation}",
        "torch.nn.modules.linear.Identity",
    ):
        raise InputError(
            f"{path} asks for the activation {name[:60]}; supported are those of torch.nn "
            f"called {', '.join(_ACTIVATIONS)}",
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
    if not head.settings.modules:
        names = {"": "models.Transformer", "1_Pooling": "models.Pooling"}
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": f"{PACKAGE}{kind}"}
            for i, (path, kind) in enumerate(names.items())
        ]
        config: Any = model.config
        modes = {name: mode in head.pooling for name, mode in EARLIER_MODES.items()}
        pooling = {"word_embedding_dimension": config.hidden_size, **modes}
        files: dict[Path, Any] = {
            directory / MODULES: modules,
            encoder_settings_file(directory): {"max_seq_length": tokens, "do_lower_case": False},
            directory / "1_Pooling" / "config.json": pooling,
        }
        for path, contents in files.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
        return
    write_settings(source, directory)
    layers = iter(head.layers)
    for kind, folder in head.settings.modules[1:]:
        (directory / folder).mkdir(exist_ok=True)
        config_file = Path(folder) / "config.json"
        if (source / config_file).exists():
            shutil.copyfile(source / config_file, directory / config_file)
        if kind in ("Pooling", "Dropout"):
            continue
        state = {name: x.contiguous() for name, x in next(layers).state_dict().items()}
        if state:
            save_file(state, directory / folder / WEIGHTS, metadata={"format": "pt"})
