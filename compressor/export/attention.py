"""Attention for inference graphs, which replaces a model's attention blocks during export.

It has one product for query, key and value, the scale in the query's weights, one additive mask for
all layers, and the cross-attention keys and values of all layers from one product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from compressor.export.attention_base import GraphAttention, attend
from compressor.export.decoder_attention import CrossAttention, DecoderSelfAttention
from compressor.export.token_operators import selecting_in_graphs
from compressor.model.architectures import architecture_of
from compressor.model.memory import release
from compressor.model.modeling_pruned import NoHeads
from compressor.model.modeling_selection import Mixed, attention_received
from compressor.model.modeling_tokens import Attended, ReadsOneToken, at_place
from compressor.model.sublayers import Mask, Sublayer
from compressor.options.table import Table


def _rows_of(linear: nn.Linear, start: int, end: int) -> nn.Linear:
    """A linear layer with some of the outputs of another."""
    has_bias = linear.bias is not None
    made = nn.Linear(linear.in_features, end - start, has_bias, device="meta")
    made.weight = nn.Parameter(linear.weight[start:end].detach().clone())
    if has_bias:
        made.bias = nn.Parameter(linear.bias[start:end].detach().clone())
    return made


class EncoderSelfAttention(GraphAttention):
    """Attention of an encoder whose scores are products, as BERT's and BART's.

    A form of other scores is a subclass in `ENCODER_FORMS`. In a layer that computes one token
    alone, the query has a product of its own, and the keys and values of all tokens have one for
    both.
    """

    additive: ClassVar[bool] = True  # the model gets an `additive_mask`, or [batch, tokens] of 1, 0

    def __init__(self, model: nn.Module, layer: Sublayer, kept: Sequence[int], output: Any) -> None:
        super().__init__(model, layer, kept, output)
        whole = model.get_submodule(layer.layer_path)
        self.query: nn.Linear | None = None
        if isinstance(whole, ReadsOneToken) and not whole.computes_all:
            stacked, inner = self.projection, self.heads * self.head_dim
            self.query = _rows_of(stacked, 0, inner)
            self.projection = _rows_of(stacked, inner, 3 * inner)

    @classmethod
    @contextmanager
    def shared(cls, model: nn.Module) -> Iterator[Sequence[Tensor]]:
        """Replace, within the context, what all layers share.

        Args:
            model: the encoder.

        Yields:
            The tensors that it is computed from, besides the model's weights.
        """
        yield ()

    @override
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Attended | Mixed | Tensor | None = None,
        mask: Tensor | None = None,  # the same, as T5 calls it
        **_: object,
    ) -> tuple[Tensor | None, ...]:
        """Attend within each row.

        Args:
            hidden_states: [batch, tokens, width]; of the one query, [batch, 1, width].
            attention_mask: additive, [batch, 1, queries or 1, keys]; or with the states of all
                tokens, in a layer that computes one token; or what `mix` has made of them.
            mask: the same, as T5 calls it.

        Returns:
            [batch, queries, heads x head_dim] or [batch, queries, width], and what else
            transformers' block returns.
        """
        if isinstance(attention_mask, Mixed):
            return self.block_outputs(self.output(attention_mask.values))
        states, added = self.attended(hidden_states, attention_mask if mask is None else mask)[:2]
        query, key, value = self.split(hidden_states, states)
        tokens = hidden_states.shape[1]
        bias = None if self.bias is None else self.bias(0, tokens, tokens)
        mixed = attend(query, key, value, bias, added)
        return self.block_outputs(self.merge(mixed))

    def mix(
        self, states: Tensor, mask: Tensor, real: Tensor, positions: Any, counted: None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend, up to the output projection, in a layer that hands on fewer tokens.

        Args:
            states: [batch, tokens, width].
            mask: additive, [batch, 1, queries or 1, tokens].
            real: [batch, tokens] bool: queries that count.
            positions: what scores are made of beside products, as in `modeling_selection`.
            counted: all heads that are left.

        Returns:
            Mixed values, [batch, tokens, heads x head_dim]; and the attention that each token
            receives, [batch, tokens].
        """
        query, key, value = self.split(states, states)
        scores = self.scores(query, key, positions) + mask
        weights = torch.softmax(scores, dim=-1)
        mixed = (weights @ value).transpose(1, 2).flatten(-2)
        return mixed, attention_received(weights, real)

    def scores(self, query: Tensor, key: Tensor, positions: Any) -> Tensor:
        """Attention scores without a mask, [batch, heads, tokens, tokens], as `mix` needs them."""
        return query @ key.transpose(-1, -2)

    def attended(
        self, hidden_states: Tensor, mask: Attended | Tensor | None
    ) -> tuple[Tensor, Any, Tensor | None]:
        """Find the states that queries attend to.

        Args:
            hidden_states: of the queries, [batch, tokens or 1, width].
            mask: what the block gets as its mask.

        Returns:
            States of keys and values [batch, tokens, width]; what is added to scores, [batch, 1,
            queries or 1, keys], or None; and the place of the one query, as in `Attended`.
        """
        if not isinstance(mask, Attended):
            return hidden_states, mask, None
        states, added, place = mask
        if added is not None and added.shape[2] != 1:
            added = at_place(added, 2, place)
        return states, added, place

    def split(self, hidden_states: Tensor, states: Tensor) -> list[Tensor]:
        """Project states to heads.

        Args:
            hidden_states: of the queries, [batch, tokens or 1, width].
            states: of the keys and values, [batch, tokens, width].

        Returns:
            Query, key and value, [batch, heads, tokens, head_dim] each.
        """
        parts = self.projection(states).split(self.heads * self.head_dim, dim=-1)
        if self.query is not None:
            parts = (self.query(hidden_states), *parts)
        # Not by `view`, for which the exporter writes nodes that compute sizes.
        return [x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2) for x in parts]

    def merge(self, mixed: Tensor) -> Tensor:
        """Join heads, and project them if the block contains the output projection.

        Args:
            mixed: [batch, heads, tokens, head_dim].

        Returns:
            [batch, tokens, heads x head_dim], or [batch, tokens, width].
        """
        merged: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return merged


# Kind of a decoder's sublayer -> what replaces its attention block.
FORMS: dict[str, type[GraphAttention]] = {
    "decoder_self": DecoderSelfAttention,
    "cross": CrossAttention,
}
# How an encoder's attention scores are made -> what replaces its attention block.
ENCODER_FORMS: Table[type[EncoderSelfAttention]] = Table(
    "form of attention",
    {
        "products": EncoderSelfAttention,
        "stack_bias": "compressor.export.encoder_attention:MPNetAttention",
        "rotated": "compressor.export.encoder_attention:ModernBertAttention",
        "disentangled": "compressor.export.encoder_attention:DebertaAttention",
    },
)


def encoder_form(model: nn.Module) -> type[EncoderSelfAttention]:
    """The form of a model's encoder attention, by how its architecture makes scores."""
    return ENCODER_FORMS[architecture_of(model).scores]


@contextmanager
def graph_attention(
    model: nn.Module, layers: Sequence[Sublayer], mask: Mask
) -> Iterator[Sequence[Tensor]]:
    """Replace, within the context, a model's attention blocks that have heads.

    Args:
        model: the network.
        layers: its sublayers; those that are no attention stay as they are.
        mask: says which heads are left.

    Yields:
        The tensors that graphs may contain besides parameters.
    """
    encoder = encoder_form(model)
    forms = {"encoder_self": encoder, **FORMS}
    made = dict[str, GraphAttention]()  # path of the replaced block -> its replacement
    for layer in layers:
        if layer.kind in forms and not isinstance(model.get_submodule(layer.block), NoHeads):
            # BERT's output projection is outside of its attention block.
            inside = layer.output.startswith(layer.block + ".")
            output = model.get_submodule(layer.output) if inside else None
            block = forms[layer.kind](model, layer, mask.kept(layer.name), output)
            made[layer.block] = block.eval()
    # Replaced after all are created, since a bias may use the table of another block.
    originals = {path: model.get_submodule(path) for path in made}
    for path, block in made.items():
        model.set_submodule(path, block)
    try:
        with encoder.shared(model) as tables, selecting_in_graphs():
            yield tables
    finally:
        for path, original in originals.items():
            model.set_submodule(path, original)
        for block in made.values():
            block.output = nn.Identity()  # the model's own, which must not be released
            release(block)
