"""The parts that all attention in inference graphs has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from compressor.model.architectures import architecture_of
from compressor.model.sublayers import Sublayer

# Added to the scores of padded keys. exp(-1e4) is zero in every exported precision. It is finite in
# float16, and a row of padding alone gives no NaN.
MASKED = -1e4


def additive_mask(attention_mask: Tensor) -> Tensor:
    """Turn a mask [batch, keys] of 1 and 0 into one of 0 and `MASKED`, [batch, 1, 1, keys]."""
    return (attention_mask[:, None, None, :].to(torch.float32) - 1.0) * -MASKED


def attend(query: Tensor, key: Tensor, value: Tensor, *added: Tensor | None) -> Tensor:
    """Softmax attention of a query that is scaled already.

    Args:
        query: [batch, heads, queries, head_dim].
        key: [batch, heads, keys, head_dim].
        value: [batch, heads, keys, head_dim].
        added: masks and biases that scores [batch, heads, queries, keys] can take, or None.

    Returns:
        [batch, heads, queries, head_dim].
    """
    scores = query @ key.transpose(-1, -2)
    for values in added:
        scores = scores if values is None else scores + values
    return torch.softmax(scores, dim=-1) @ value


def stack(projections: Sequence[Any], scale: float = 1.0) -> nn.Linear:
    """One linear layer with the outputs of several, one after the other.

    Args:
        projections: linear layers of one input.
        scale: that the first one's outputs are multiplied by.
    """
    scales = [scale] + [1.0] * (len(projections) - 1)
    biases = [p.weight.new_zeros(p.out_features) if p.bias is None else p.bias for p in projections]
    weight = torch.cat([p.weight * s for p, s in zip(projections, scales, strict=True)])
    bias = torch.cat([b * s for b, s in zip(biases, scales, strict=True)])
    # On "meta", no weights are allocated and initialized before they are replaced.
    linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    linear.weight, linear.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
    return linear


class PositionBias(nn.Module):
    """The relative position bias of some heads of the attention that has the table.

    Args:
        attention: its own, or the first layer's (T5).
        heads: numbers of the heads, as columns of the table.
    """

    # Looked up by distance: the logarithm for buckets may differ in its last bit in onnxruntime.
    def __init__(self, attention: Any, heads: Sequence[int]) -> None:
        super().__init__()
        most = self.max_distance = int(attention.relative_attention_max_distance)
        # One query in the middle of these keys has every distance: [1, heads, 1, distances]
        made = attention.compute_bias(1, 2 * most + 1, past_seen_tokens=most)
        self.table = nn.Parameter(made[0, list(heads), 0].detach().T.clone())  # [distances, heads]

    def forward(self, first: Tensor | int, queries: int, keys: int) -> Tensor:
        """The bias of scores, [heads, queries, keys].

        Args:
            first: position of the first query.
            queries: how many.
            keys: how many, from position 0 on.
        """
        most = self.max_distance
        distance = torch.arange(keys)[None] - (torch.arange(queries)[:, None] + first)
        numbers = distance.clamp(-most, most) + most  # [queries, keys]
        return nn.functional.embedding(numbers, self.table).permute(2, 0, 1)


class GraphAttention(nn.Module):
    """Base of the attention of graphs: some heads of a dense model, with one input projection.

    Args:
        model: with the block that is replaced.
        layer: the sublayer of the block.
        kept: numbers of the dense model's heads that it has.
        output: the output projection; None if the block does not contain it.
    """

    roles: ClassVar[Sequence[str]] = ("query", "key", "value")

    def __init__(
        self, model: nn.Module, layer: Sublayer, kept: Sequence[int], output: nn.Module | None
    ) -> None:
        super().__init__()
        self.index = layer.index
        self.heads = len(kept)
        self.head_dim = layer.unit_width
        self.projection = self.stacked(model, layer)
        self.output = output if output is not None else nn.Identity()
        # T5: one table, of the first layer, for all heads of the dense model.
        self.first_layer_bias = architecture_of(model).position_bias == "first_layer"
        self.bias: PositionBias | None = None
        if layer.biased_by is not None:
            # A layer's own table has columns for the kept heads only.
            columns = kept if self.first_layer_bias else range(len(kept))
            self.bias = PositionBias(model.get_submodule(layer.biased_by), columns)

    def stacked(self, model: nn.Module, layer: Sublayer) -> nn.Linear:
        """The projections of `roles` as one linear layer, with the scale in the query's weights."""
        projections = [model.get_submodule(layer.inputs[role]) for role in self.roles]
        return stack(projections, self.scale(model, layer))

    def scale(self, model: nn.Module, layer: Sublayer) -> float:
        """The factor of queries."""
        return layer.scale  # of queries

    def block_outputs(self, output: Tensor) -> tuple[Tensor | None, ...]:
        """The outputs of transformers' attention block, of which only the first is read."""
        return (output, None, None) if self.first_layer_bias else (output, None)
