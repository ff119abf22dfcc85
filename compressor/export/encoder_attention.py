"""Attention of encoders whose scores are more than products of queries and keys.

Positions enter MPNet's and DeBERTa's scores by the distance of two tokens, in buckets that grow
with the distance. Buckets are computed here, once for every distance that the model can meet: the
logarithm that they are rounded from may differ in its last bit between PyTorch and onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from compressor.export.attention import EncoderSelfAttention, attend
from compressor.model.architectures import architecture_of
from compressor.model.sublayers import Sublayer


def base_of(model: nn.Module) -> Any:
    """The encoder without its head."""
    return model.get_submodule(architecture_of(model).base)


@contextmanager
def replaced(owner: Any, **attributes: object) -> Iterator[None]:
    """An object, or a module of Python, has other attributes while the context lasts."""
    before = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    vars(owner).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(owner)[name]
        vars(owner).update(before)


class ByDistance:
    """Something for each distance of two tokens, a row of a table.

    Args:
        rows: from distances [any] to rows of the table, [any] each.
        tokens: the most of a text.
    """

    def __init__(self, rows: Callable[[Tensor], Tensor], tokens: int) -> None:
        self.most = tokens - 1
        self.rows = rows(torch.arange(-self.most, tokens)).long()  # [2 x tokens - 1]

    def __call__(self, distances: Tensor) -> Tensor:
        """Rows of the table for distances, any shape."""
        return self.rows[distances.clamp(-self.most, self.most) + self.most]


class MPNetBias:
    """Stands in for `MPNetEncoder.compute_position_bias`."""

    def __init__(self, encoder: Any, tokens: int) -> None:
        self.table = encoder.relative_attention_bias
        self.buckets = ByDistance(encoder.relative_position_bucket, tokens)

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """[batch, tokens, width] -> [1, heads of the dense model, queries, keys]"""
        places = torch.arange(hidden_states.shape[1])
        bias: Tensor = self.table(self.buckets(places[None] - places[:, None]))
        return bias.permute(2, 0, 1)[None]


class MPNetAttention(EncoderSelfAttention):
    """Adds a bias by distance and head, which all layers share."""

    def __init__(
        self, model: nn.Module, layer: Sublayer, kept: Sequence[int], output: nn.Module | None
    ) -> None:
        super().__init__(model, layer, kept, output)
        self.kept = None if len(kept) == layer.units else torch.tensor(kept)

    @classmethod
    @contextmanager
    def shared(cls, model: nn.Module) -> Iterator[None]:
        encoder, tokens = base_of(model).encoder, architecture_of(model).positions(model.config)
        with replaced(encoder, compute_position_bias=MPNetBias(encoder, tokens)):
            yield

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: Tensor, position_bias: Tensor, **_: object
    ) -> tuple[Tensor, None]:
        query, key, value = self.split(hidden_states)
        own = position_bias if self.kept is None else position_bias[:, self.kept]
        return self.merge(attend(query, key, value, own + attention_mask)), None
