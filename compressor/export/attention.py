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

from compressor.model.architectures import architecture_of
from compressor.model.memory import release
from compressor.model.modeling_pruned import NoHeads
from compressor.model.modeling_tokens import Attended, ReadsOneToken, at_place
from compressor.model.sublayers import Mask, Sublayer
from compressor.options.table import Table

# Layer -> key and value, [batch, heads, tokens, head_dim] each
KeysValues = dict[int, tuple[Tensor, Tensor]]
# Added to the scores of padded keys. exp(-1e4) is zero in every exported precision. It is finite in
# float16, and a row of padding alone gives no NaN.
MASKED = -1e4


def additive_mask(attention_mask: Tensor) -> Tensor:
    """[batch, keys] of 1 and 0 -> [batch, 1, 1, keys] of 0 and `MASKED`."""
    return (attention_mask[:, None, None, :].to(torch.float32) - 1) * -MASKED


def attend(query: Tensor, key: Tensor, value: Tensor, *added: Tensor | None) -> Tensor:
    """Attention of a scaled query, [batch, heads, tokens, head_dim], with biases of the scores."""
    scores = query @ key.transpose(-1, -2)
    for values in added:
        scores = scores if values is None else scores + values
    return torch.softmax(scores, dim=-1) @ value


def _stack(projections: Sequence[Any], scale: float = 1.0) -> nn.Linear:
    """One linear layer with the outputs of several, one after the other; the first is scaled."""
    scales = [scale] + [1.0] * (len(projections) - 1)
    biases = [p.weight.new_zeros(p.out_features) if p.bias is None else p.bias for p in projections]
    weight = torch.cat([p.weight * s for p, s in zip(projections, scales, strict=True)])
    bias = torch.cat([b * s for b, s in zip(biases, scales, strict=True)])
    # On "meta", no weights are allocated and initialized before they are replaced.
    linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    linear.weight, linear.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
    return linear


def _rows_of(linear: nn.Linear, start: int, end: int) -> nn.Linear:
    """A linear layer with some of the outputs of another."""
    has_bias = linear.bias is not None
    made = nn.Linear(linear.in_features, end - start, has_bias, device="meta")
    made.weight = nn.Parameter(linear.weight[start:end].detach().clone())
    if has_bias:
        made.bias = nn.Parameter(linear.bias[start:end].detach().clone())
    return made


class PositionBias(nn.Module):
    """The relative position bias of some heads of the attention that has the table."""

    # Looked up by distance: the logarithm for buckets may differ in its last bit in onnxruntime.
    def __init__(self, attention: Any, heads: Sequence[int]) -> None:
        super().__init__()
        most = self.max_distance = int(attention.relative_attention_max_distance)
        # One query in the middle of these keys has every distance: [1, heads, 1, distances]
        made = attention.compute_bias(1, 2 * most + 1, past_seen_tokens=most)
        self.table = nn.Parameter(made[0, list(heads), 0].detach().T.clone())  # [distances, heads]

    def forward(self, first: Tensor | int, queries: int, keys: int) -> Tensor:
        """[heads, queries, keys]; `first` is the position of the first query."""
        most = self.max_distance
        distance = torch.arange(keys)[None] - (torch.arange(queries)[:, None] + first)
        numbers = distance.clamp(-most, most) + most  # [queries, keys]
        return nn.functional.embedding(numbers, self.table).permute(2, 0, 1)


class _Attention(nn.Module):
    """Some heads of a dense model, with the output projection if the block contains it."""

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
        projections = [model.get_submodule(layer.inputs[role]) for role in self.roles]
        return _stack(projections, self.scale(model, layer))

    def scale(self, model: nn.Module, layer: Sublayer) -> float:
        return layer.scale  # of queries

    def returned(self, output: Tensor) -> tuple[Tensor | None, ...]:
        """As transformers' attention, of which only the output is read."""
        return (output, None, None) if self.first_layer_bias else (output, None)


class EncoderSelfAttention(_Attention):
    """Attention of an encoder, as BERT's and BART's.

    In a layer that computes one token alone, the query has a product of its own, and the keys and
    values of all tokens have one for both.
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
        """Replace, within the context, what all layers share; yields the tensors that it is of."""
        yield ()

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Attended | Tensor | None = None,
        mask: Tensor | None = None,  # the same, as T5 calls it
        **_: object,
    ) -> tuple[Tensor | None, ...]:
        states, added = self.attended(hidden_states, attention_mask if mask is None else mask)[:2]
        query, key, value = self.split(hidden_states, states)
        tokens = hidden_states.shape[1]
        bias = None if self.bias is None else self.bias(0, tokens, tokens)
        mixed = attend(query, key, value, bias, added)
        return self.returned(self.merge(mixed))

    def attended(
        self, hidden_states: Tensor, mask: Attended | Tensor | None
    ) -> tuple[Tensor, Any, Tensor | None]:
        """What queries attend to.

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
        """Query, key and value, [batch, heads, tokens, head_dim] each.

        Args:
            hidden_states: of the queries, [batch, tokens or 1, width]
            states: of the keys and values, [batch, tokens, width]
        """
        parts = self.projection(states).split(self.heads * self.head_dim, dim=-1)
        if self.query is not None:
            parts = (self.query(hidden_states), *parts)
        # Not by `view`, for which the exporter writes nodes that compute sizes.
        return [x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2) for x in parts]

    def merge(self, mixed: Tensor) -> Tensor:
        """[batch, heads, tokens, head_dim] -> [batch, tokens, heads x head_dim], or the width"""
        merged: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return merged


class DecoderSelfAttention(_Attention):
    """Attends to the past, to which it appends. The one token's heads need no transposition."""

    def forward(
        self, hidden_states: Tensor, past_key_values: StepState, **_: object
    ) -> tuple[Tensor | None, ...]:
        state = past_key_values
        # [batch, 1, 3 x heads x head_dim] -> [batch, heads, 1, head_dim] each
        heads = self.projection(hidden_states).reshape(-1, 3 * self.heads, 1, self.head_dim)
        query, key, value = heads.split(self.heads, dim=1)
        past = state.past[self.index]
        key, value = (torch.cat(pair, dim=2) for pair in zip(past, (key, value), strict=True))
        state.present[self.index] = (key, value)
        bias = None if self.bias is None else self.bias(state.position, 1, key.shape[2])
        mixed = attend(query, key, value, bias)
        return self.returned(self.output(mixed.reshape(-1, 1, self.heads * self.head_dim)))


class CrossAttention(_Attention):
    """Attends to the keys and values that the encoder graph computes."""

    roles = ("query",)

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: StepState,
        attention_mask: Tensor | None = None,
        mask: Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor | None, ...]:
        query = self.projection(hidden_states).reshape(-1, self.heads, 1, self.head_dim)
        key, value = past_key_values.cross[self.index]
        mixed = attend(query, key, value, attention_mask if mask is None else mask)
        return self.returned(self.output(mixed.reshape(-1, 1, self.heads * self.head_dim)))


class CrossKeysValues(nn.Module):
    """Keys and values of every decoder layer's cross-attention from one matrix product."""

    def __init__(self, model: nn.Module, layers: Sequence[Sublayer], mask: Mask) -> None:
        super().__init__()
        self.used = [x for x in layers if x.kind == "cross" and mask.kept(x.name)]  # with heads
        paths = [x.inputs[role] for x in self.used for role in ("key", "value")]
        projections: list[Any] = [model.get_submodule(path) for path in paths]
        self.sizes = [projection.out_features for projection in projections]
        if self.used:
            self.project = _stack(projections)

    def forward(self, hidden: Tensor) -> list[Tensor]:
        """[batch, source, width] -> key, value, key, value, … [batch, heads, source, head_dim]"""
        if not self.used:
            return []
        head_dim = self.used[0].unit_width
        parts = self.project(hidden).split(self.sizes, dim=-1)
        return [part.unflatten(-1, (-1, head_dim)).transpose(1, 2) for part in parts]


class StepState:
    """The decoder's cache, with the methods that its forward calls: past in, present out."""

    def __init__(self, position: Tensor, cross: KeysValues, past: KeysValues) -> None:
        # The number of decoded tokens, which the past may not show: no heads may be left.
        self.position = position
        self.cross = cross
        self.past = past
        self.present = KeysValues()

    def get_seq_length(self, layer_idx: int = 0) -> Tensor:
        return self.position

    def update(self, key: Tensor, value: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Called by layers without heads to record the length, which is `position` here."""
        return key, value


# Kind of a decoder's sublayer -> what replaces its attention block.
FORMS: dict[str, type[_Attention]] = {"decoder_self": DecoderSelfAttention, "cross": CrossAttention}
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

    Yields the tensors that graphs may contain besides parameters.
    """
    encoder = encoder_form(model)
    forms = {"encoder_self": encoder, **FORMS}
    made = dict[str, _Attention]()  # path of the replaced block -> its replacement
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
        with encoder.shared(model) as tables:
            yield tables
    finally:
        for path, original in originals.items():
            model.set_submodule(path, original)
        for block in made.values():
            block.output = nn.Identity()  # the model's own, which must not be released
            release(block)
