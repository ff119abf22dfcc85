"""Attention of a decoder step, and the cache that it reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from compressor.export.attention_base import GraphAttention, attend, stack
from compressor.model.sublayers import Mask, Sublayer

# Layer -> key and value, [batch, heads, tokens, head_dim] each
KeysValues = dict[int, tuple[Tensor, Tensor]]


class DecoderSelfAttention(GraphAttention):
    """Attention to the past, to which it appends. The one token's heads need no transposition."""

    def forward(
        self, hidden_states: Tensor, past_key_values: StepState, **_: object
    ) -> tuple[Tensor | None, ...]:
        """Attend from one token to those before it, and to itself.

        Args:
            hidden_states: [batch, 1, width].
            past_key_values: keys and values of the past; those of all tokens are put into its
                `present`.
        """
        state = past_key_values
        # [batch, 1, 3 x heads x head_dim] -> [batch, heads, 1, head_dim] each
        heads = self.projection(hidden_states).reshape(-1, 3 * self.heads, 1, self.head_dim)
        query, key, value = heads.split(self.heads, dim=1)
        past = state.past[self.index]
        key, value = (torch.cat(pair, dim=2) for pair in zip(past, (key, value), strict=True))
        state.present[self.index] = (key, value)
        bias = None if self.bias is None else self.bias(state.position, 1, key.shape[2])
        mixed = attend(query, key, value, bias)
        return self.block_outputs(self.output(mixed.reshape(-1, 1, self.heads * self.head_dim)))


class CrossAttention(GraphAttention):
    """Attention to the keys and values that the encoder graph computes."""

    roles = ("query",)

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: StepState,
        attention_mask: Tensor | None = None,
        mask: Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor | None, ...]:
        """Attend from one token to the source.

        Args:
            hidden_states: [batch, 1, width].
            past_key_values: has the keys and values of the source.
            attention_mask: additive, [batch, 1, 1, source].
            mask: the same, as T5 calls it.
        """
        query = self.projection(hidden_states).reshape(-1, self.heads, 1, self.head_dim)
        key, value = past_key_values.cross[self.index]
        mixed = attend(query, key, value, attention_mask if mask is None else mask)
        return self.block_outputs(self.output(mixed.reshape(-1, 1, self.heads * self.head_dim)))


class CrossKeysValues(nn.Module):
    """Keys and values of every decoder layer's cross-attention from one matrix product.

    Args:
        model: an encoder-decoder.
        layers: all its sublayers.
        mask: says which of them have heads left.
    """

    def __init__(self, model: nn.Module, layers: Sequence[Sublayer], mask: Mask) -> None:
        super().__init__()
        self.used = [x for x in layers if x.kind == "cross" and mask.kept(x.name)]  # with heads
        paths = [x.inputs[role] for x in self.used for role in ("key", "value")]
        projections: list[Any] = [model.get_submodule(path) for path in paths]
        self.sizes = [projection.out_features for projection in projections]
        if self.used:
            self.project = stack(projections)

    def forward(self, hidden: Tensor) -> list[Tensor]:
        """Project the encoder's hidden states.

        Args:
            hidden: [batch, source, width].

        Returns:
            Key, value, key, value, …: [batch, heads, source, head_dim] each.
        """
        if not self.used:
            return []
        head_dim = self.used[0].unit_width
        parts = self.project(hidden).split(self.sizes, dim=-1)
        return [part.unflatten(-1, (-1, head_dim)).transpose(1, 2) for part in parts]


class StepState:
    """The decoder's cache, with the methods that its forward calls: past in, present out.

    Args:
        position: the number of decoded tokens, which the past may not show: no heads may be left.
        cross: keys and values of the source.
        past: keys and values of the tokens so far.
    """

    def __init__(self, position: Tensor, cross: KeysValues, past: KeysValues) -> None:
        # The number of decoded tokens, which the past may not show: no heads may be left.
        self.position = position
        self.cross = cross
        self.past = past
        self.present = KeysValues()

    def get_seq_length(self, layer_idx: int = 0) -> Tensor:
        """The number of decoded tokens, [1]."""
        return self.position

    def update(self, key: Tensor, value: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Do nothing; layers without heads call it to record the length, which `position` has."""
        return key, value
