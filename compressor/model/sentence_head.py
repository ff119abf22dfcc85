"""From token vectors to one embedding per text: pooling, and the modules behind it.

An encoder with such a head stays a model of its class in transformers, with its weights at the
root; its forward also gives `logits`, here the embeddings [batch, width]. Names and computations
are those of the modules of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import normalize

from compressor.model.modeling_pruned import pruned_class
from compressor.model.sentence_settings import SentenceSettings

HEAD = "sentence_head"
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Sigmoid": nn.Sigmoid,
}
_LEAST = 1e-9  # divisor of a mean over no tokens


class DenseLayer(nn.Module):
    """A linear layer and its activation, one of `ACTIVATIONS`.

    Args:
        residual: the input is added to the output, projected where their sizes differ.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool, activation: str, residual: bool
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias)
        self.activation = ACTIVATIONS[activation]()
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


def _first(hidden: Tensor, real: Tensor) -> Tensor:
    return hidden[:, 0]  # padding is on the right


def _last(hidden: Tensor, real: Tensor) -> Tensor:
    count = real.long().cumsum(1)
    return torch.where(real & (count == count[:, -1:]), hidden, 0.0).sum(1)


def _largest(hidden: Tensor, real: Tensor) -> Tensor:
    return torch.where(real, hidden, torch.finfo(hidden.dtype).min).amax(1)


def _sums(hidden: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted sum of vectors, and the sum of the weights, [batch, 1]."""
    return (hidden * weights).sum(1), weights.sum(1).clamp_min(_LEAST)


def _mean(hidden: Tensor, real: Tensor) -> Tensor:
    total, count = _sums(hidden, real.to(hidden.dtype))
    return total / count


def _mean_by_root(hidden: Tensor, real: Tensor) -> Tensor:
    total, count = _sums(hidden, real.to(hidden.dtype))
    return total / count.sqrt()


def _mean_by_position(hidden: Tensor, real: Tensor) -> Tensor:
    weights = real.to(hidden.dtype)
    total, count = _sums(hidden, weights * weights.cumsum(1))
    return total / count


# From hidden states [batch, tokens, width] and which tokens are real [batch, tokens, 1].
POOLINGS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _first,
    "max": _largest,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_by_root,
    "weightedmean": _mean_by_position,
    "lasttoken": _last,
}


class SentenceHead(nn.Module):
    """Pooling, the modules behind it, and the cut to some numbers.

    Args:
        width: of the vectors before they are cut.
        pooling: names in `POOLINGS`, whose results stand one after the other.
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
        pooled = [POOLINGS[name](hidden, real[..., None]) for name in self.pooling]
        vectors = pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)
        for layer in self.layers:
            vectors = layer(vectors)
        kept = self.settings.truncate
        return vectors if kept is None else vectors[:, :kept]


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


def add_head(model: nn.Module, head: SentenceHead) -> None:
    """Give an encoder its head, in place."""
    model.__class__ = _with_head(cast(Any, type(model)))
    model.add_module(HEAD, head)
    # Whoever counts multiply-adds has the configuration alone (`Task.head`).
    config: Any = model.config
    linear = [x for x in head.modules() if isinstance(x, nn.Linear)]
    config.dense_sizes = [[x.in_features, x.out_features] for x in linear]


def head_of(model: nn.Module) -> SentenceHead:
    """The head of an encoder that has one."""
    head = model.get_submodule(HEAD)
    assert isinstance(head, SentenceHead)
    return head
