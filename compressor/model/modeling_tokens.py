"""Encoders whose last layer computes the one token that is read, for `modeling_pruned.py`.

Neither file needs any other of `compress`. A classifier reads the state of the first token alone.
Of other tokens it needs keys and values of the last layer, and nothing else: its queries, output
projection, feed-forward part, normalizations and residuals are those of the token that is read. The
logits stay what they were.

`read_token` in `config.json` has the path of the last `layer`; from there on those of its attention
`block`, of its projections `inputs` (query, key and value, or one for all three) and `output`, and
of the `norm` before the attention, if there is one; the width of a head; how `scores` are made; and
whether the last token is read instead of the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

# How scores are made -> the name of the third argument of such an attention, if it has one.
_THIRD = {"stack_bias": "position_bias", "disentangled": "output_attentions"}

KEPT_TOKENS = "kept_tokens"  # attribute of states: which tokens of the rows they are of


class Attended(NamedTuple):
    """The states that the one query attends to, in place of the mask, which layers hand on."""

    states: Tensor  # of all tokens, [batch, tokens, width]
    mask: Tensor | None  # as the layer got it
    place: Tensor | None  # [batch] int64: which token of each row is read; None: the first


class ReadsOneToken(nn.Module):
    """A mixin of the last Transformer layer, which computes one token alone."""

    reads_last: bool  # the last real token of each row, else the first token
    norm_path: str  # of what the layer normalizes the attention's input with; empty: nothing
    computes_all = False  # as the class of the library does, while it is set

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Compute the layer for one token.

        Args:
            hidden_states: [batch, tokens, width].
            attention_mask: as the layer takes it.
            args: all others of the library's class.
            kwargs: all others of the library's class.

        Returns:
            The layer's outputs for that token, [batch, 1, width].
        """
        library: Any = super()
        if self.computes_all:
            return library.forward(hidden_states, attention_mask, *args, **kwargs)
        place = None
        if self.reads_last:
            kept = getattr(hidden_states, KEPT_TOKENS, None)
            place = _last_token(hidden_states, attention_mask) if kept is None else kept.read
        norm = self.get_submodule(self.norm_path) if self.norm_path else nn.Identity()
        attended = Attended(norm(hidden_states), attention_mask, place)
        return library.forward(at_place(hidden_states, 1, place), attended, *args, **kwargs)


class OpenAttention(nn.Module):
    """Base of mixins of an attention block that compute attention from its projections."""

    roles: tuple[str, ...]  # names of the projections of query, key and value; or of their product
    output_path: str  # of the output projection; empty where it is outside of the block
    head_width: int
    scores: str

    @classmethod
    def open(cls, layer: nn.Module, paths: Mapping[str, Any]) -> None:
        """Mix the class into the attention block of a layer, unless that has no heads.

        Args:
            layer: the Transformer layer.
            paths: `read_token` of `config.json`, as the module describes it.
        """
        block: Any = layer.get_submodule(paths["block"])
        if not hasattr(block, paths["inputs"][0].rpartition(".")[2]):
            return  # it has no heads
        inside = f"{paths['block']}."
        mixin: Any = cls
        kind: Any = type(block)
        block.__class__ = mixed_class(mixin, kind)
        block.roles = tuple(path.removeprefix(inside) for path in paths["inputs"])
        is_inside = paths["output"].startswith(inside)
        block.output_path = paths["output"].removeprefix(inside) if is_inside else ""
        block.head_width, block.scores = paths["head_width"], paths["scores"]

    def projected(self, one: Tensor, everything: Tensor) -> list[Tensor]:
        """Project states to heads.

        Args:
            one: states of the queries, [batch, queries, width].
            everything: of the keys and values, [batch, tokens, width].

        Returns:
            Query [batch, heads, queries, head_width], key and value [batch, heads, tokens,
            head_width].
        """
        if len(self.roles) == 3:
            query, key, value = (self.get_submodule(name) for name in self.roles)
            parts = [query(one), key(everything), value(everything)]
        else:
            whole: Any = self.get_submodule(self.roles[0])
            inner = whole.out_features // 3
            weights = whole.weight.split((inner, 2 * inner))
            biases = (None, None) if whole.bias is None else whole.bias.split((inner, 2 * inner))
            # Through no call of the module: its query is of one token, its keys are of all.
            parts = [linear(one, weights[0], biases[0])]
            parts += linear(everything, weights[1], biases[1]).chunk(2, -1)
        return [x.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for x in parts]

    def dropout_rate(self) -> float:
        """The share of attention probabilities that training drops."""
        rate = getattr(self, "attention_dropout", None)
        if rate is None:
            rate = self.get_submodule("dropout").p
        return float(rate)  # type: ignore[arg-type]

    def finished(self, merged: Tensor) -> Tensor:
        """The block's output for mixed values [batch, queries, heads x head_width]."""
        if self.output_path:
            merged = self.get_submodule(self.output_path)(merged)
            after = getattr(self, "out_drop", None)
            merged = merged if after is None else after(merged)
        return merged


class OneQuery(OpenAttention):
    """A mixin of the attention block in that layer: one query, and the keys of all tokens."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Attended | Tensor | None = None,
        position_bias: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Attend from one token to all.

        Args:
            hidden_states: of that token, [batch, 1, width].
            attention_mask: has the states of all tokens.
            position_bias: whatever the block's third argument is; MPNet's is a bias of scores, [1
                or batch, heads, queries, keys].
            kwargs: all others of the library's class.

        Returns:
            The block's output, [batch, 1, heads x head_width or width].
        """
        if not isinstance(attention_mask, Attended):
            library: Any = super()
            if self.scores in _THIRD:
                kwargs[_THIRD[self.scores]] = position_bias
            return library.forward(hidden_states, attention_mask=attention_mask, **kwargs)
        states, mask, place = attention_mask
        if mask is not None and mask.dim() == 4 and mask.shape[2] != 1:
            mask = at_place(mask, 2, place)
        query, key, value = self.projected(hidden_states, states)
        scale, bias = self.head_width**-0.5, None
        if self.scores == "rotated":
            # [1, 1, tokens, head_width] each
            cos, sin = (x.unsqueeze(1) for x in kwargs["position_embeddings"])
            query = rotated(query, at_place(cos, 2, place), at_place(sin, 2, place))
            key = rotated(key, cos, sin)
        elif self.scores == "stack_bias":
            bias = at_place(position_bias, 2, place)
        elif self.scores == "disentangled":
            block: Any = self
            scale /= (1 + sum(kind in block.pos_att_type for kind in ("c2p", "p2c"))) ** 0.5
            if block.relative_attention:
                bias = _position_scores(block, query, key, place, **kwargs)
        dropout = self.dropout_rate() if self.training else 0.0
        mixed = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=added_mask(mask, bias, query.dtype),
            dropout_p=dropout,
            scale=scale,
        )
        return self.finished(mixed.transpose(1, 2).flatten(-2)), None


def rotated(values: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, eq. 34) of [batch, heads, tokens, head_width]."""
    first, second = values.chunk(2, dim=-1)
    return values * cos + torch.cat((-second, first), dim=-1) * sin


def real_tokens(states: Tensor, mask: Tensor | None) -> Tensor:
    """Which tokens are no padding.

    Args:
        states: [batch, tokens, width].
        mask: [batch, tokens] or [batch, 1, queries or 1, tokens]: 1 for tokens that are seen and 0,
            or numbers to add to scores; None: all are seen.

    Returns:
        [batch, tokens] bool.
    """
    if mask is None:
        return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    real = mask >= 0 if mask.is_floating_point() else mask.bool()
    if real.dim() == 4:  # whatever a window hides from a query
        real = real[:, 0, 0] if real.shape[2] == 1 else real.any(2)[:, 0]
    return real


def _last_token(states: Tensor, mask: Tensor | None) -> Tensor:
    """The place of the last real token of each row, [batch] int64; `mask` as for `real_tokens`."""
    places = torch.arange(states.shape[1], device=states.device)
    return (real_tokens(states, mask) * places).amax(-1)


def at_place(values: Tensor, dim: int, place: Tensor | None) -> Tensor:
    """One entry of a dimension: the first, or at each row's place.

    Args:
        values: [1 or batch, ..., entries, ...], `entries` at `dim`.
        dim: number of the dimension.
        place: [batch] int64; None for the first of each row.

    Returns:
        [1 or batch, ..., 1, ...]
    """
    if place is None:
        return values.narrow(dim, 0, 1)
    sizes = [1] * values.dim()
    index = place.view(-1, *sizes[1:])
    shape = [len(place), *values.shape[1:]]
    shape[dim] = 1
    return values.expand(len(place), *values.shape[1:]).gather(dim, index.expand(shape))


def added_mask(mask: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Join what is added to attention scores.

    Args:
        mask: [batch, keys] or [batch, 1, queries or 1, keys]: 1 for keys that are seen and 0, or
            numbers to add.
        bias: [batch or 1, heads, queries, keys], to add.
        dtype: of the scores.

    Returns:
        Numbers to add, [batch, heads or 1, queries or 1, keys]; None: nothing.
    """
    if mask is None:
        return bias
    if mask.dim() == 2:
        mask = mask[:, None, None]
    if not mask.is_floating_point():
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask.bool(), torch.finfo(dtype).min)
    return mask if bias is None else mask + bias


def _position_scores(
    block: Any,
    query: Tensor,
    key: Tensor,
    place: Tensor | None,
    *,
    rel_embeddings: Tensor,
    relative_pos: Tensor,
    **_: Any,
) -> Tensor:
    """DeBERTa's products with positions (He et al. 2021, eq. 4) for one query.

    Args:
        block: the attention.
        query: [batch, heads, 1, head_width]
        key: [batch, heads, tokens, head_width]
        place: [batch] of the query among the tokens, as for `at_place`.
        rel_embeddings: the table of relative positions, [2 x span, width]
        relative_pos: [1, tokens, tokens], of each query (row) to each key

    Returns:
        [batch, heads, 1, tokens]
    """
    span = block.pos_ebd_size
    table = block.pos_dropout(rel_embeddings)[: 2 * span]
    terms = 1 + sum(kind in block.pos_att_type for kind in ("c2p", "p2c"))
    scale = (query.shape[-1] * terms) ** -0.5

    def projected(role: str) -> Tensor:
        name = f"{role}_proj" if block.share_att_key else f"pos_{role}_proj"
        rows = block.get_submodule(name)(table)  # [2 x span, heads x head_width]
        heads: Tensor = rows.unflatten(-1, (-1, query.shape[-1])).transpose(0, 1)
        return heads  # [heads, 2 x span, head_width]

    def rows(products: Tensor, positions: Tensor) -> Tensor:
        """Columns of products [batch, heads, any, 2 x span] at positions [1 or batch, 1, keys]."""
        columns = positions.clamp(0, 2 * span - 1)[:, None]  # [1 or batch, 1, 1, keys]
        return columns.expand(*products.shape[:2], 1, columns.shape[-1])

    scores = query.new_zeros(())
    if "c2p" in block.pos_att_type:
        products = query @ projected("key").mT  # [batch, heads, 1, 2 x span]
        columns = rows(products, at_place(relative_pos, 1, place) + span)
        scores = scores + products.gather(-1, columns)
    if "p2c" in block.pos_att_type:
        products = key @ projected("query").mT  # [batch, heads, tokens, 2 x span]
        # Of each key (row) to the query, as if keys were queries: [1 or batch, tokens, 1]
        positions = span - at_place(relative_pos, 2, place)
        columns = rows(products, positions.mT).mT  # [batch, heads, tokens, 1]
        scores = scores + products.gather(-1, columns).mT
    return scores * scale


@cache
def mixed_class(mixin: Any, kind: Any) -> Any:
    """The class of the library with a mixin; one that has it already stays."""
    if issubclass(kind, mixin):
        return kind
    made = type(f"{mixin.__name__}{kind.__name__}", (mixin, kind), {"__module__": __name__})
    globals()[made.__name__] = made  # so that models can be pickled
    return made


def computes_one_token(model: nn.Module) -> bool:
    """Whether the last layer of a model computes one token alone, as it is now."""
    path = getattr(model, "one_token_layer", None)
    layer = None if path is None else model.get_submodule(path)
    return isinstance(layer, ReadsOneToken) and not layer.computes_all


def compute_one_token(model: nn.Module, paths: Mapping[str, Any]) -> None:
    """Let the last layer of an encoder compute one token alone, in place.

    Args:
        model: the encoder.
        paths: `read_token` of `config.json`, as the module describes it; `block`, `inputs`,
            `output` and `norm` are from `layer` on.
    """
    library: Any = model
    library.one_token_layer = paths["layer"]
    layer: Any = model.get_submodule(paths["layer"])
    kind: Any = type(layer)
    layer.__class__ = mixed_class(ReadsOneToken, kind)
    layer.reads_last, layer.norm_path = paths["reads_last"], paths["norm"]
    OneQuery.open(layer, paths)
