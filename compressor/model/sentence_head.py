"""From token vectors to one embedding per text: pooling, the modules behind it, and their files.

An encoder with such a head stays a model of its class in transformers. Names, computations and
files are those of sentence-transformers, which has a folder for each module.
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

from compressor.model.location import (
    PICKLE,
    WEIGHTS,
    misfit,
    require_usable,
    stored_tensors,
    weight_files,
)
from compressor.model.modeling_pruned import pruned_class
from compressor.model.modeling_tokens import computes_one_token
from compressor.model.reading import first_line, read_settings, unsupported
from compressor.model.sentence_settings import (
    EARLIER_MODES,
    MODULE_FILES,
    MODULES,
    PACKAGE,
    SETTINGS,
    SentenceSettings,
    encoder_settings_file,
)
from compressor.model.sublayers import TokenRead

HEAD = "sentence_head"
_ACTIVATIONS = {
    f"torch.nn.{module}{kind.__name__}": kind
    for kind in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)
    for module in ("", "modules.activation.", "modules.linear.")
}
_ACTIVATION, _TANH = "activation_function", "torch.nn.modules.activation.Tanh"
_LEAST = 1e-9  # divisor of a mean over no tokens
# Poolings that read one token of each row.
_READ: dict[tuple[str, ...], TokenRead] = {("cls",): "first", ("lasttoken",): "last"}


class DenseLayer(nn.Module):
    """A linear layer and its activation, whose input may be added to its output.

    Args:
        settings: of the module in sentence-transformers.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        inputs, outputs = settings["in_features"], settings["out_features"]
        self.linear = nn.Linear(inputs, outputs, settings.get("bias", True))
        self.activation = _ACTIVATIONS[settings.get(_ACTIVATION, _TANH)]()
        self.adds = settings.get("use_residual", False)
        if self.adds and inputs != outputs:
            self.residual = nn.Linear(inputs, outputs, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors [batch, inputs] to [batch, outputs]."""
        output: Tensor = self.activation(self.linear(vectors))
        if not self.adds:
            return output
        return output + (self.residual(vectors) if hasattr(self, "residual") else vectors)


class UnitLength(nn.Module):
    """A layer that divides vectors by their L2 norm."""

    def forward(self, vectors: Tensor) -> Tensor:
        """Normalize vectors [batch, width]."""
        return normalize(vectors, dim=-1)


class SentenceHead(nn.Module):
    """Pooling, whose results stand one after the other, the modules behind it, and a cut.

    Args:
        width: of the pooled vectors.
        pooling: names of sentence-transformers' modes.
        layers: behind the pooling.
        settings: of sentence-transformers.
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

    @property
    def token_read(self) -> TokenRead | None:
        """The token of which alone the embedding is made; None: of several, or of all."""
        return _READ.get(self.pooling)

    def forward(self, hidden: Tensor, real: Tensor | None) -> Tensor:
        """Compute the embeddings of a batch.

        Args:
            hidden: [batch, tokens, width].
            real: [batch, tokens] bool, False for padding; None where `hidden` is of the token alone
                that the head reads.

        Returns:
            [batch, numbers].
        """
        if real is None:
            pooled = [hidden[:, 0]]
        else:
            pooled = [_pool(mode, hidden, real[..., None]) for mode in self.pooling]
        vectors = pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)
        for layer in self.layers:
            vectors = layer(vectors)
        kept = self.settings.truncate
        return vectors if kept is None else vectors[:, :kept]


def _pool(mode: str, hidden: Tensor, real: Tensor) -> Tensor:
    """Pool the states of each row's tokens.

    Args:
        mode: a name of sentence-transformers.
        hidden: [batch, tokens, width].
        real: which tokens are no padding, [batch, tokens, 1].

    Returns:
        [batch, width].
    """
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
        """Run the encoder, and add `logits` to its output: the embeddings [batch, width]."""
        # The mask is of 1 and 0, or [batch, 1, 1, tokens] to be added to scores, 0 at real tokens.
        output = super().forward(attention_mask=attention_mask, **inputs)
        real = None
        if not computes_one_token(self):
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
    """The head of an encoder."""
    head = model.get_submodule(HEAD)
    assert isinstance(head, SentenceHead)
    return head


def add_head(
    model: nn.Module, directory: Path, settings: SentenceSettings | None, allow_pickle: bool
) -> None:
    """Give an encoder its stored head, in place.

    Args:
        model: of transformers.
        directory: of the checkpoint.
        settings: of sentence-transformers; None: the mean of token vectors.
        allow_pickle: whether weights may be read from pickles.

    Raises:
        InputError: a file is missing or malformed, or describes what is not supported.
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
    modes: tuple[str, ...] = ()
    layers: list[nn.Module] = []
    for kind, folder in settings.modules[1:]:  # behind the encoder, the pooling first
        path = directory / folder / "config.json"
        needed = kind not in ("Normalize", "Dropout")
        values = read_settings(path, MODULE_FILES[kind], "sentence-file-malformed", needed)
        if kind == "Pooling":
            modes = _modes(values)
            width *= len(modes)
            if not values.get("include_prompt", True) and any(settings.prompts.values()):
                raise unsupported(path, "include_prompt", False, f"{SETTINGS} has prompts")
        elif kind == "Normalize":
            layers.append(UnitLength())
        elif kind != "Dropout":
            layers.append(_layer(values, path, width, allow_pickle))
            width = values.get("out_features", width)
    return SentenceHead(width, modes, layers, settings)


def _modes(values: Mapping[str, Any]) -> tuple[str, ...]:
    named = values.get("pooling_mode", [])
    if isinstance(named, str):
        return (named,)
    flags = [mode for key, mode in EARLIER_MODES.items() if values.get(key)]
    return tuple(named or flags or ["mean"])


def _layer(values: Mapping[str, Any], path: Path, width: int, allow_pickle: bool) -> nn.Module:
    """A dense layer or a normalization for inputs of this width with its weights, in float32."""
    is_dense = "out_features" in values
    inputs = values.get("in_features" if is_dense else "dimension")
    if inputs != width:
        raise misfit(path, f"has {inputs} inputs, and the modules before it give {width}")
    activation = values.get(_ACTIVATION, _TANH)
    if activation not in _ACTIVATIONS:
        known = ", ".join(x for x in _ACTIVATIONS if x.count(".") == 2)
        raise unsupported(path, _ACTIVATION, activation, f"supported are {known}")
    file, *_ = weight_files(path.parent, allow_pickle)
    stored = stored_tensors([file])
    if file.name == PICKLE:
        state = torch.load(file, map_location="cpu", weights_only=True)
    else:
        state = load_file(file)
    with torch.device("meta"):  # no memory is taken before sizes are compared
        layer = DenseLayer(values) if is_dense else nn.Sequential()
        if not is_dense:
            layer.add_module("norm", nn.LayerNorm(width))
    try:
        # Copies, since weights in a mapped file lie at any address.
        copies = {name: value.to(torch.float32, copy=True) for name, value in state.items()}
        layer.load_state_dict(copies, assign=True)
    except (RuntimeError, AttributeError) as error:
        raise misfit(path, f"is not of the weights beside it ({first_line(error)})") from error
    require_usable(layer, stored)
    return layer


def write_settings(source: Path, directory: Path) -> None:
    """Copy the files of sentence-transformers at the root of a checkpoint beside the encoder."""
    if (source / MODULES).exists():
        for path in (source / MODULES, source / SETTINGS, encoder_settings_file(source)):
            if path.exists():
                shutil.copyfile(path, directory / path.name)


def write_layout(model: nn.Module, tokens: int, source: Path, directory: Path) -> None:
    """Write all that sentence-transformers needs beside an encoder.

    Args:
        model: the encoder with its head.
        tokens: length of the longest text.
        source: directory of the checkpoint that it was made from.
        directory: with the encoder.
    """
    head = head_of(model)
    if not head.settings.modules:
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": f"{PACKAGE}models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{PACKAGE}models.Pooling"},
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
