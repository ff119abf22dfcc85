"""Attention of encoders whose scores are more than products of queries and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from compressor.export.attention import EncoderSelfAttention
from compressor.export.attention_base import MASKED, additive_mask, attend
from compressor.model.architectures import architecture_of
from compressor.model.modeling_selection import Mixed
from compressor.model.modeling_tokens import Attended, at_place, rotated
from compressor.model.sublayers import Sublayer


def _base_of(model: nn.Module) -> tuple[Any, int]:
    """The encoder without its head, and the largest number of tokens of a text."""
    entry = architecture_of(model)
    tokens = entry.most_positions(model.config)
    assert tokens is not None  # every encoder has a limit
    return model.get_submodule(entry.base), tokens


@contextmanager
def _replaced(owner: Any, **attributes: object) -> Iterator[None]:
    """Set attributes of an object within the context."""
    before = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    vars(owner).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(owner)[name]
        vars(owner).update(before)


def _at_distance(rows: Tensor, distances: Tensor) -> Tensor:
    """Rows of a table, computed once for each distance of two tokens.

    The logarithm for buckets may differ in its last bit in onnxruntime.

    Args:
        rows: numbers of rows for the distances from -most to most, [2 x most + 1].
        distances: any shape.
    """
    most = len(rows) // 2
    return rows[distances.clamp(-most, most) + most]


def _mpnet_bias(table: nn.Embedding, rows: Tensor, hidden_states: Tensor) -> Tensor:
    """The bias of all heads of the dense model, [1, heads, queries, keys].

    Args:
        table: [buckets, heads].
        rows: of the table, for each distance.
        hidden_states: [batch, tokens, width].
    """
    positions = torch.arange(hidden_states.shape[1])
    bias: Tensor = table(_at_distance(rows, positions[None] - positions[:, None]))
    return bias.permute(2, 0, 1)[None]


class MPNetAttention(EncoderSelfAttention):
    """Attention that adds a bias by distance and head, which all layers share."""

    def __init__(self, model: nn.Module, layer: Sublayer, kept: Sequence[int], output: Any) -> None:
        super().__init__(model, layer, kept, output)
        self.kept = None if len(kept) == layer.units else torch.tensor(kept)

    @classmethod
    @contextmanager
    @override
    def shared(cls, model: nn.Module) -> Iterator[Sequence[Tensor]]:
        base, tokens = _base_of(model)
        encoder = base.encoder
        rows = encoder.relative_position_bucket(torch.arange(1 - tokens, tokens)).long()
        bias = partial(_mpnet_bias, encoder.relative_attention_bias, rows)
        with _replaced(encoder, compute_position_bias=bias):
            yield ()

    @override
    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Attended | Mixed | Tensor,
        position_bias: Tensor,
        **_: object,
    ) -> tuple[Tensor, None]:
        if isinstance(attention_mask, Mixed):
            return self.output(attention_mask.values), None
        states, mask, place = self.attended(hidden_states, attention_mask)
        query, key, value = self.split(hidden_states, states)
        bias = position_bias
        if self.query is not None:
            bias = at_place(bias, 2, place)
        return self.merge(attend(query, key, value, self._own(bias) + mask)), None

    @override
    def scores(self, query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
        return query @ key.transpose(-1, -2) + self._own(positions)

    def _own(self, bias: Tensor) -> Tensor:
        """The bias of the heads that are left, of that of all heads."""
        return bias if self.kept is None else bias.index_select(1, self.kept)


def _rotation(
    halves: Mapping[str, tuple[Tensor, ...]],
    hidden_states: Tensor,
    position_ids: Tensor,
    layer_type: str,
) -> tuple[Tensor, ...]:
    """Cosines and sines, [1, tokens, head_dim] each, of a type of layer."""
    rows = (x[: hidden_states.shape[1]][None] for x in halves[layer_type])
    return tuple(torch.cat((half, half), dim=-1) for half in rows)


class ModernBertAttention(EncoderSelfAttention):
    """Attention of queries and keys that are rotated by their positions.

    Layers attend to all keys, or to those in a window.
    """

    additive = False

    @override
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
    @override
    def shared(cls, model: nn.Module) -> Iterator[Sequence[Tensor]]:
        base, tokens = _base_of(model)
        rotary = base.rotary_emb
        # Type of layer -> cosines and sines, [most tokens, head_dim / 2] each: both halves of a
        # rotated vector have the same angles. They are looked up, since in float16 the product of a
        # position and a frequency would be off by a large part of a turn.
        halves = {}
        for kind in rotary.layer_types:
            # Only type and device of the zeros are read. Both tables: [1, tokens, head_dim]
            tables = rotary(torch.zeros(1), torch.arange(tokens)[None], kind)
            halves[kind] = tuple(x[0].chunk(2, dim=-1)[0].contiguous() for x in tables)

        def full(config: Any, inputs_embeds: Tensor, attention_mask: Tensor) -> Tensor:
            return additive_mask(attention_mask)  # [batch, 1, 1, keys]

        def window(config: Any, inputs_embeds: Tensor, attention_mask: Tensor) -> Tensor:
            positions = torch.arange(inputs_embeds.shape[1])
            far = (positions[None] - positions[:, None]).abs() > config.sliding_window
            # [batch, 1, queries, keys]; where both hide a key, -2e4 is finite in float16 too.
            return additive_mask(attention_mask) + far.to(torch.float32) * MASKED

        # The model's forward looks the masks up in its module each time.
        modeling = import_module("transformers.models.modernbert.modeling_modernbert")
        masks = {
            "create_bidirectional_mask": full,
            "create_bidirectional_sliding_window_mask": window,
        }
        with _replaced(modeling, **masks), _replaced(rotary, forward=partial(_rotation, halves)):
            yield [half for pair in halves.values() for half in pair]

    @override
    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Attended | Mixed | Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor, None]:
        if isinstance(attention_mask, Mixed):
            return self.output(attention_mask.values), None
        assert position_embeddings is not None
        states, mask, place = self.attended(hidden_states, attention_mask)
        query, key, value = self.split(hidden_states, states)
        cos, sin = (x.unsqueeze(1) for x in position_embeddings)  # [1, 1, tokens, head_dim]
        key = rotated(key, cos, sin)
        if self.query is not None:
            cos, sin = at_place(cos, 2, place), at_place(sin, 2, place)
        return self.merge(attend(rotated(query, cos, sin), key, value, mask)), None

    @override
    def scores(self, query: Tensor, key: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = (x.unsqueeze(1) for x in positions)
        return rotated(query, cos, sin) @ rotated(key, cos, sin).transpose(-1, -2)


def _distance_rows(
    rows: Tensor, hidden_states: Tensor, query_states: None = None, relative_pos: None = None
) -> Tensor:
    """Rows of the table of positions, [2, 2 x tokens].

    For distances of a query to a key from tokens - 1 down to -tokens, and from -(tokens - 1) up to
    tokens: one more than there are, for the reshape of `_position_scores`.
    """
    tokens = hidden_states.shape[1]
    up = torch.arange(2 * tokens) - (tokens - 1)
    return _at_distance(rows, torch.stack((-up, up)))


class DebertaAttention(EncoderSelfAttention):
    """Attention that adds products of queries with positions, and of positions with keys.

    Positions are those of keys and of queries: He et al. 2021, "DeBERTa", equation 4.
    """

    additive = False

    @torch.no_grad()
    def __init__(self, model: nn.Module, layer: Sublayer, kept: Sequence[int], output: Any) -> None:
        super().__init__(model, layer, kept, output)
        block: Any = model.get_submodule(layer.block)
        kinds = block.pos_att_type if block.relative_attention else ()
        if kinds:
            table = _base_of(model)[0].encoder.get_rel_embedding()[: 2 * block.pos_ebd_size]

        def projected(role: str, scale: float) -> nn.Parameter:
            """The projection of all positions, [positions, heads, head_dim]."""
            # The model's own weights: only the stacked ones include the scale of queries.
            path = layer.inputs.get(f"position_{role}", layer.inputs[role])
            rows = model.get_submodule(path)(table) * scale  # [positions, width]
            heads = rows.unflatten(-1, (self.heads, self.head_dim))
            return nn.Parameter(heads.contiguous(), requires_grad=False)

        # The same for all texts, so they are weights of the graph.
        self.position_key = projected("key", 1.0) if "c2p" in kinds else None
        scale = self.scale(model, layer)
        self.position_query = projected("query", scale) if "p2c" in kinds else None

    @override
    def scale(self, model: nn.Module, layer: Sublayer) -> float:
        config: Any = model.config
        kinds = config.pos_att_type or ()
        terms = 1 + sum(kind in kinds for kind in ("c2p", "p2c"))
        return float((self.head_dim * terms) ** -0.5)

    @classmethod
    @contextmanager
    @override
    def shared(cls, model: nn.Module) -> Iterator[Sequence[Tensor]]:
        from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

        base, tokens = _base_of(model)
        encoder = base.encoder
        replacements: dict[str, Any] = {"get_attention_mask": additive_mask}
        if encoder.relative_attention:
            buckets, most = encoder.position_buckets, encoder.max_relative_positions
            rows = torch.arange(1 - tokens, tokens)
            if buckets > 0 and most > 0:
                rows = make_log_bucket_position(rows, buckets, most)
            span = buckets if buckets > 0 else most
            rows = (rows.long() + span).clamp(0, 2 * span - 1)
            replacements["get_rel_pos"] = partial(_distance_rows, rows)
        with _replaced(encoder, **replacements):
            yield ()

    @override
    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Attended | Tensor,
        output_attentions: bool = False,
        *,
        relative_pos: Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor, None]:
        states, mask = self.attended(hidden_states, attention_mask)[:2]
        query, key, value = self.split(hidden_states, states)
        scores = query @ key.transpose(-1, -2) + mask  # [batch, heads, queries, keys]
        if self.query is not None and relative_pos is not None:
            scores = scores + self._first_position_scores(query, key, relative_pos)
            relative_pos = None
        if self.position_key is not None and relative_pos is not None:
            scores = scores + _position_scores(query, self.position_key[relative_pos[0]])
        if self.position_query is not None and relative_pos is not None:
            products = _position_scores(key, self.position_query[relative_pos[1]])
            scores = scores + products.transpose(-1, -2)  # of [batch, heads, keys, queries]
        return self.merge(torch.softmax(scores, dim=-1) @ value), None

    def _first_position_scores(
        self, query: Tensor, key: Tensor, relative_pos: Tensor
    ) -> Tensor | int:
        """Products with positions of the first token's query.

        Args:
            query: [batch, heads, 1, head_dim].
            key: [batch, heads, tokens, head_dim].
            relative_pos: [2, 2 x tokens], made by `_distance_rows`.

        Returns:
            [batch, heads, 1, tokens]; 0 without such products.
        """
        tokens = key.shape[2]
        scores: Tensor | int = 0
        if self.position_key is not None:
            # Number j + tokens - 1 is for key j, as for `_position_scores`.
            rows = self.position_key[relative_pos[0, tokens - 1 : 2 * tokens - 1]]
            scores = scores + query @ rows.permute(1, 2, 0)[None]  # [batch, heads, 1, tokens]
        if self.position_query is not None:
            # Of key j to query 0: number tokens - 1 - j.
            rows = self.position_query[relative_pos[1, :tokens].flip(0)]
            products = (key * rows.transpose(0, 1)).sum(-1)  # [batch, heads, tokens]
            scores = scores + products[:, :, None]
        return scores


def _position_scores(queries: Tensor, positions: Tensor) -> Tensor:
    """Each query's products with the positions at the distances of its keys.

    The relative shift of Dai et al. 2019, "Transformer-XL", appendix B.

    Args:
        queries: [batch, heads, tokens, head_dim].
        positions: [2 x tokens, heads, head_dim], whose number j - i + tokens - 1 is for query i and
            key j.

    Returns:
        [batch, heads, tokens, tokens].
    """
    # With four dimensions, as queries have: with three, onnxruntime 1.31 crashes when it fuses a
    # transposition into the product, in float16 on a CPU.
    products = queries @ positions.permute(1, 2, 0)[None]  # [batch, heads, tokens, 2 x tokens]
    batch, heads, tokens, _ = products.shape
    # Each query's keys begin one column before those of the last query, which in flattened rows are
    # 2 x tokens - 1 values later.
    flat = products.reshape(batch, heads, 2 * tokens * tokens)
    rows = flat[..., tokens - 1 : 2 * tokens * tokens - 1]
    return rows.reshape(batch, heads, tokens, 2 * tokens - 1)[..., :tokens]
