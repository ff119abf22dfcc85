"""From token vectors to one embedding per text: pooling, dense layers, normalization.

An encoder with such a head stays a model of its class in transformers, with its weights at the
root; its forward also gives `logits`, here the embeddings [batch, width].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import normalize

from compressor.model.modeling_pruned import pruned_class

HEAD = "sentence_head"
POOLINGS = ("mean", "cls", "max")
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
}
_LEAST = 1e-9  # divisor of a mean over no tokens


@dataclass(frozen=True)
class DenseLayer:
    """A linear layer behind the pooling, and its activation, one of `ACTIVATIONS`."""

    inputs: int
    outputs: int
    bias: bool = True
    activation: str = "Tanh"


@dataclass(frozen=True)
class Layout:
    """What follows the encoder; the defaults are for encoders that do not say.

    Args:
        pooling: one of `POOLINGS`: the mean or the largest value over real tokens, or the first
            token's vector.
        normalize: whether embeddings are divided by their L2 norm.
        max_tokens: the most tokens of a text, special ones included; None: what the model takes.
    """

    pooling: str = "mean"
    dense: Sequence[DenseLayer] = ()
    normalize: bool = False
    max_tokens: int | None = None


class SentenceHead(nn.Module):
    """Pooling, dense layers and normalization, as a layout says."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.dense = nn.ModuleList(nn.Linear(x.inputs, x.outputs, x.bias) for x in layout.dense)
        self.activations = nn.ModuleList(ACTIVATIONS[x.activation]() for x in layout.dense)

    def forward(self, hidden: Tensor, real: Tensor) -> Tensor:
        """
        Args:
            hidden: [batch, tokens, width of the encoder].
            real: which tokens are no padding, [batch, tokens] bool.

        Returns:
            [batch, width of the embedding]
        """
        pooled = self._pool(hidden, real[..., None])
        for dense, activation in zip(self.dense, self.activations, strict=True):
            pooled = activation(dense(pooled))
        return normalize(pooled, dim=-1) if self.layout.normalize else pooled

    def _pool(self, hidden: Tensor, real: Tensor) -> Tensor:
        if self.layout.pooling == "cls":
            return hidden[:, 0]
        if self.layout.pooling == "max":
            return torch.where(real, hidden, torch.finfo(hidden.dtype).min).amax(1)
        weights = real.to(hidden.dtype)  # [batch, tokens, 1]
        return (hidden * weights).sum(1) / weights.sum(1).clamp_min(_LEAST)


class _EncoderWithHead(nn.Module):
    """The forward of an encoder with a head."""

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


def add_head(
    model: nn.Module, layout: Layout, weights: Sequence[Mapping[str, Tensor]] = ()
) -> None:
    """Give an encoder its head, in place.

    Args:
        weights: of each dense layer, `weight` and `bias`.
    """
    head = SentenceHead(layout)
    for dense, stored in zip(head.dense, weights, strict=True):
        dense.load_state_dict(dict(stored))
    model.__class__ = _with_head(cast(Any, type(model)))
    model.add_module(HEAD, head)
    # Whoever counts multiply-adds has the configuration alone (`Task.head`).
    config: Any = model.config
    config.dense_sizes = [[x.inputs, x.outputs] for x in layout.dense]


def head_of(model: nn.Module) -> SentenceHead:
    """The head of an encoder that has one."""
    head = model.get_submodule(HEAD)
    assert isinstance(head, SentenceHead)
    return head


def embedding_width(model: nn.Module) -> int:
    """How many numbers an embedding has."""
    dense, config = head_of(model).layout.dense, model.config
    width: Any = dense[-1].outputs if dense else config.hidden_size  # type: ignore[union-attr]
    return int(width)
