"""Attention of encoders whose scores are more than products of queries and keys.

MPNet's and DeBERTa's scores depend on the distance of two tokens, in buckets that grow with the
distance. Buckets are computed here, once for every possible distance, since the logarithm may
differ in its last bit between PyTorch and onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from compressor.export.attention import MASKED, EncoderSelfAttention, additive_mask, attend
from compressor.model.architectures import architecture_of
from compressor.model.sublayers import Sublayer


def base_of(model: nn.Module) -> Any:
    """The encoder without its head."""
    return model.get_submodule(architecture_of(model).base)


def max_tokens_of(model: Any) -> int:
    """The largest number of tokens of a text."""
    tokens = architecture_of(model).most_positions(model.config)
    assert tokens is not None  # every encoder has a limit
    return tokens


@contextmanager
def replaced(owner: Any, **attributes: object) -> Iterator[None]:
    """Replace attributes of an object or a Python module within the context."""
    # Attributes that were not in its own namespace come from its class again.
    before = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    vars(owner).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(owner)[name]
        vars(owner).update(before)


class ByDistance:
    """Rows of a table, for each distance of two tokens.

    Args:
        rows: from distances to rows of the table, both of any one shape.
        tokens: the most of a text.
    """

    def __init__(self, rows: Callable[[Tensor], Tensor], tokens: int) -> None:
        self.max_distance = tokens - 1
        self.rows = rows(torch.arange(-self.max_distance, tokens)).long()  # [2 x tokens - 1]

    def __call__(self, distances: Tensor) -> Tensor:
        """Rows of the table for distances, any shape."""
        return self.rows[distances.clamp(-self.max_distance, self.max_distance) + self.max_distance]


class MPNetBias:
    """Replaces `MPNetEncoder.compute_position_bias`."""

    def __init__(self, encoder: Any, tokens: int) -> None:
        self.table = encoder.relative_attention_bias
        self.buckets = ByDistance(encoder.relative_position_bucket, tokens)

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """[batch, tokens, width] -> [1, heads of the dense model, queries, keys]"""
        positions = torch.arange(hidden_states.shape[1])
        # [queries, keys, heads]
        bias: Tensor = self.table(self.buckets(positions[None] - positions[:, None]))
        return bias.permute(2, 0, 1)[None]


class MPNetAttention(EncoderSelfAttention):
    """Adds a bias by distance and head that all layers share."""

    def __init__(
        self, model: nn.Module, layer: Sublayer, kept: Sequence[int], output: nn.Module | None
    ) -> None:
        super().__init__(model, layer, kept, output)
        # With all heads the graph needs no Gather.
        self.kept = None if len(kept) == layer.units else torch.tensor(kept)

    @classmethod
    @contextmanager
    def shared(cls, model: nn.Module) -> Iterator[Sequence[Tensor]]:
        encoder, tokens = base_of(model).encoder, max_tokens_of(model)
        with replaced(encoder, compute_position_bias=MPNetBias(encoder, tokens)):
            yield ()

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: Tensor, position_bias: Tensor, **_: object
    ) -> tuple[Tensor, None]:
        query, key, value = self.split(hidden_states)
        bias = position_bias if self.kept is None else position_bias.index_select(1, self.kept)
        return self.merge(attend(query, key, value, bias + attention_mask)), None


def _full_mask(config: Any, inputs_embeds: Tensor, attention_mask: Tensor) -> Tensor:
    """Replaces transformers' `create_bidirectional_mask`: [batch, 1, 1, keys]."""
    return additive_mask(attention_mask)


def _window_mask(config: Any, inputs_embeds: Tensor, attention_mask: Tensor) -> Tensor:
    """Replaces its `create_bidirectional_sliding_window_mask`: [batch, 1, queries, keys]."""
    positions = torch.arange(inputs_embeds.shape[1])
    # Where both masks hide a key, the sum -2e4 is finite in float16 too.
    far = (positions[None] - positions[:, None]).abs() > config.sliding_window  # [queries, keys]
    return additive_mask(attention_mask) + far.to(torch.float32) * MASKED


class RotaryTable:
    """Replaces the forward of `ModernBertRotaryEmbedding` by tables of all cosines and sines.

    In float16 the product of a position and a frequency would be off by a large part of a turn.
    """

    def __init__(self, rotary: Any, tokens: int) -> None:
        positions = torch.arange(tokens)[None]
        # Only type and device of the zeros are read. Cosines and sines, [1, tokens, head_dim] each.
        tables = {kind: rotary(torch.zeros(1), positions, kind) for kind in rotary.layer_types}
        # Both halves of a rotated vector have the same angles: [tokens, head_dim / 2]
        self.halves = {
            kind: tuple(x[0].chunk(2, dim=-1)[0].contiguous() for x in pair)
            for kind, pair in tables.items()
        }

    def __call__(
        self, hidden_states: Tensor, position_ids: Tensor, layer_type: str
    ) -> tuple[Tensor, ...]:
        """Cosines and sines, [1, tokens, head_dim] each."""
        halves = (x[: hidden_states.shape[1]][None] for x in self.halves[layer_type])
        return tuple(torch.cat((half, half), dim=-1) for half in halves)


class ModernBertAttention(EncoderSelfAttention):
    """Rotates queries and keys by their positions; attends to all keys, or to those in a window."""

    additive = False

    def stacked(self, model: nn.Module, layer: Sublayer) -> nn.Linear:
        (path,) = layer.inputs.values()  # of all three, one after the other
        old: Any = model.get_submodule(path)
        made = nn.Linear(old.in_features, old.out_features, old.bias is not None, device="meta")
        for name, parameter in old.named_parameters():
            query, *others = parameter.detach().chunk(3)
            weight = torch.cat((query * self.scale(model, layer), *others))
            setattr(made, name, nn.Parameter(weight))
        return made

    @classmethod
    @contextmanager
    def shared(cls, model: nn.Module) -> Iterator[Sequence[Tensor]]:
        modeling = import_module("transformers.models.modernbert.modeling_modernbert")
        rotary, tokens = base_of(model).rotary_emb, max_tokens_of(model)
        masks = {
            "create_bidirectional_mask": _full_mask,
            "create_bidirectional_sliding_window_mask": _window_mask,
        }
        table = RotaryTable(rotary, tokens)
        # The model's forward looks the masks up in its module each time.
        with replaced(modeling, **masks), replaced(rotary, forward=table):
            yield [half for halves in table.halves.values() for half in halves]

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor,
        **_: object,
    ) -> tuple[Tensor, None]:
        query, key, value = self.split(hidden_states)
        cos, sin = (x.unsqueeze(1) for x in position_embeddings)  # [1, 1, tokens, head_dim]
        query, key = (x * cos + _rotate_half(x) * sin for x in (query, key))
        return self.merge(attend(query, key, value, attention_mask)), None


def _rotate_half(values: Tensor) -> Tensor:
    first, second = values.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class DistanceRows:
    """Replaces `DebertaV2Encoder.get_rel_pos`.

    Rows of the table of positions, for distances of a query to a key from tokens - 1 down to
    -tokens, and from -(tokens - 1) up to tokens.
    """

    def __init__(self, encoder: Any, tokens: int) -> None:
        from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

        size, most = encoder.position_buckets, encoder.max_relative_positions
        span = size if size > 0 else most

        def rows(distances: Tensor) -> Tensor:
            buckets = distances
            if size > 0 and most > 0:
                buckets = make_log_bucket_position(distances, size, most)
            return (buckets.long() + span).clamp(0, 2 * span - 1)

        self.rows = ByDistance(rows, tokens)

    def __call__(
        self, hidden_states: Tensor, query_states: None = None, relative_pos: None = None
    ) -> Tensor:
        """[batch, tokens, width] -> [2, 2 x tokens]"""
        tokens = hidden_states.shape[1]
        # One more than the number of distances, for the reshape of `relative_shift`.
        up = torch.arange(2 * tokens) - (tokens - 1)
        return self.rows(torch.stack((-up, up)))


def relative_shift(products: Tensor) -> Tensor:
    """Select from each query's products with all distances those with the distances of its keys.

    The relative shift of Dai et al. 2019, "Transformer-XL", appendix B.

    Args:
        products: [batch, heads, tokens, 2 x tokens]; the distance of query i and key j is in
            column j - i + tokens - 1.

    Returns:
        [batch, heads, tokens, tokens]
    """
    batch, heads, tokens, _ = products.shape
    # Each query's keys begin one column before those of the last query, which in flattened rows are
    # 2 x tokens - 1 values later.
    flat = products.reshape(batch, heads, 2 * tokens * tokens)
    rows = flat[..., tokens - 1 : 2 * tokens * tokens - 1]
    return rows.reshape(batch, heads, tokens, 2 * tokens - 1)[..., :tokens]


def _columns(positions: Tensor) -> Tensor:
    """[positions, heads, head_dim] -> [1, heads, head_dim, positions]

    With four dimensions, as queries have: with three, onnxruntime 1.31 crashes when it fuses a
    transposition into the product, in float16 on a CPU.
    """
    return positions.permute(1, 2, 0)[None]


class DebertaAttention(EncoderSelfAttention):
    """Adds products of queries with the positions of keys, and of keys with those of queries.

    The projected positions are the same for all texts, so they are weights of the graph.
    """

    additive = False

    def __init__(
        self, model: nn.Module, layer: Sublayer, kept: Sequence[int], output: nn.Module | None
    ) -> None:
        super().__init__(model, layer, kept, output)
        encoder = base_of(model).encoder
        block: Any = model.get_submodule(layer.block)
        kinds = block.pos_att_type if block.relative_attention else ()
        self.position_key = self.position_query = None
        if kinds:
            with torch.no_grad():
                table = encoder.get_rel_embedding()[: 2 * block.pos_ebd_size]
            if "c2p" in kinds:
                path = layer.inputs.get("position_key", layer.inputs["key"])
                self.position_key = self._projected(model, path, table, 1.0)
            if "p2c" in kinds:
                path = layer.inputs.get("position_query", layer.inputs["query"])
                # The model's own weights: only the stacked ones include the scale of queries.
                self.position_query = self._projected(model, path, table, self.scale(model, layer))

    def _projected(self, model: nn.Module, path: str, table: Tensor, scale: float) -> nn.Parameter:
        """Positions [positions, width] -> [positions, heads, head_dim]"""
        with torch.no_grad():
            projected: Tensor = model.get_submodule(path)(table) * scale
        heads = projected.unflatten(-1, (self.heads, self.head_dim))
        return nn.Parameter(heads.contiguous(), requires_grad=False)

    def scale(self, model: nn.Module, layer: Sublayer) -> float:
        config: Any = model.config
        kinds = config.pos_att_type or ()
        terms = 1 + sum(kind in kinds for kind in ("c2p", "p2c"))
        return float((self.head_dim * terms) ** -0.5)

    @classmethod
    @contextmanager
    def shared(cls, model: nn.Module) -> Iterator[Sequence[Tensor]]:
        encoder, tokens = base_of(model).encoder, max_tokens_of(model)
        others: dict[str, Any] = {"get_attention_mask": additive_mask}
        if encoder.relative_attention:
            others["get_rel_pos"] = DistanceRows(encoder, tokens)
        with replaced(encoder, **others):
            yield ()

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        *,
        relative_pos: Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor, None]:
        query, key, value = self.split(hidden_states)
        scores = query @ key.transpose(-1, -2) + attention_mask  # [batch, heads, queries, keys]
        if self.position_key is not None and relative_pos is not None:
            scores = scores + relative_shift(query @ _columns(self.position_key[relative_pos[0]]))
        if self.position_query is not None and relative_pos is not None:
            # [batch, heads, keys, queries]
            products = relative_shift(key @ _columns(self.position_query[relative_pos[1]]))
            scores = scores + products.transpose(-1, -2)
        return self.merge(torch.softmax(scores, dim=-1) @ value), None
