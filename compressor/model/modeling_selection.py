"""Encoders whose layers hand on a share of a row's tokens, for `modeling_pruned.py`.

Neither file needs any other of `compress`. A token's significance is the attention that it
receives, summed over heads and over the row's real queries (Goyal et al. 2020, "PoWER-BERT"). After
a layer's attention the row goes on with its most significant tokens, as many as the layer's tenths
of the row's own length say, rounded up; the token that is read always stays. So what a row is
answered depends on the row alone, whatever else is in its batch. Equal significance goes by place.

`handed_on` in `read_token` of `config.json` has the tenths of each layer but the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .modeling_tokens import (
    KEPT_TOKENS,
    OpenAttention,
    added_mask,
    compute_one_token,
    mixed_class,
    real_tokens,
    rotated,
)

TENTHS = 10
_MASKED = -1e4  # added to the scores of keys that are none; exp(-1e4) is zero, also in float16


@dataclass(frozen=True)
class KeptTokens:
    """Which tokens of the whole rows some states are of, the most significant first."""

    places: Tensor  # [batch, kept] int64, in the row
    real: Tensor  # [batch, kept] bool: False where a shorter row of the batch has no token
    added: Tensor  # [batch, kept] float32: what that adds to attention scores
    preferred: Tensor  # [batch, kept] float32: what is added to significance, to rank tokens
    lengths: Tensor  # [batch, 1] int64: real tokens of the whole rows
    whole: Tensor  # [batch, tokens], of the whole rows with padding; its size alone counts
    tenths: int  # of the rows' tokens that are left
    significance: Tensor  # [batch, kept], of the last layer that had heads
    read: Tensor | None  # [batch] int64: the slot of the token that is read; None: the first
    # [batch]: the least relative difference between the significance of a token that was kept and
    # of one that was not, over all layers so far; None in a graph.
    margin: Tensor | None


@dataclass(frozen=True)
class Mixed:
    """What attention has mixed for the tokens that are kept, in place of the block's mask."""

    values: Tensor  # [batch, kept, heads x head_width], before the output projection


def kept_tokens(states: Tensor) -> KeptTokens | None:
    """The tokens that some states are of; None: all."""
    kept: KeptTokens | None = getattr(states, KEPT_TOKENS, None)
    return kept


class SelectsTokens(nn.Module):
    """A mixin of a Transformer layer that hands on fewer tokens than it gets, or gets fewer."""

    hands_on: int  # tenths of a row's tokens
    attention_path: str  # of the attention block, from the layer on
    norm_path: str  # of what normalizes the attention's input; empty: nothing
    scores: str  # how attention scores are made
    keeps_last: bool  # the last real token of each row is read, else the first token
    # All tokens are computed, and those that are not handed on are hidden from later layers: what
    # the model that leaves them out has to be equal to.
    masks: bool = False
    # Which heads count, where the others are gated; None: all. A model without them has no others.
    counted: tuple[bool, ...] | None = None
    latest: KeptTokens | None = None  # the tokens that it has handed on last

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Compute the layer for the tokens that it gets, and choose those that it hands on.

        Args:
            hidden_states: [batch, tokens, width].
            attention_mask: of the whole rows, as the layer of the library takes it.
            args: all others of the library's class, of the whole rows.
            kwargs: all others of the library's class, of the whole rows.

        Returns:
            The layer's outputs for the tokens that go on, [batch, kept, width].
        """
        library: Any = super()
        kept = kept_tokens(hidden_states)
        left = TENTHS if kept is None else kept.tenths
        if kept is None:
            if self.hands_on >= left:
                return library.forward(hidden_states, attention_mask, *args, **kwargs)
            kept = all_tokens(hidden_states, attention_mask, self.keeps_last)
        else:
            attention_mask = masked_at(kept, attention_mask, hidden_states.dtype)
            args, kwargs = self._at_places(kept, args, kwargs)
        if self.hands_on < left:
            block: Any = self.get_submodule(self.attention_path)
            mixed = None
            # Without heads, the latest significance counts.
            if hasattr(block, "mix") and any(self.counted or [True]):
                norm = self.get_submodule(self.norm_path) if self.norm_path else nn.Identity()
                positions = self._positions(args, kwargs)
                states = norm(hidden_states)
                mixed, received = block.mix(
                    states, attention_mask, kept.real, positions, self.counted
                )
                kept = replace(kept, significance=received)
            hide = hide_tokens if self.masks else choose_tokens
            kept, slots = hide(kept, self.hands_on)
            hidden_states = at_slots(hidden_states, slots)
            attention_mask = None if mixed is None else Mixed(at_slots(mixed, slots))
        returned = library.forward(hidden_states, attention_mask, *args, **kwargs)
        setattr(returned[0] if isinstance(returned, tuple) else returned, KEPT_TOKENS, kept)
        if not torch.compiler.is_exporting():
            self.latest = kept
        return returned

    def _positions(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the attention's scores have beside products: MPNet's bias, ModernBERT's angles."""
        if self.scores == "stack_bias":
            return args[0] if args else kwargs.get("position_bias")
        return kwargs.get("position_embeddings") if self.scores == "rotated" else None

    def _at_places(
        self, kept: KeptTokens, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the layer with the positions of the tokens that are left."""
        if self.masks or self.scores == "products":
            return args, kwargs
        if self.scores == "rotated":
            angles = tuple(_rows_at(x, kept.places) for x in kwargs["position_embeddings"])
            return args, kwargs | {"position_embeddings": angles}
        bias = _pairs_at(self._positions(args, kwargs), kept.places)
        if args:
            return (bias, *args[1:]), kwargs
        return args, kwargs | {"position_bias": bias}


class HandsOutAttention(OpenAttention):
    """A mixin of the attention block in a layer that selects: it tells what tokens receive."""

    def mix(
        self,
        states: Tensor,
        mask: Tensor | None,
        real: Tensor,
        positions: Any,
        counted: Sequence[bool] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attend, up to the output projection.

        Args:
            states: [batch, tokens, width].
            mask: as for `added_mask`.
            real: [batch, tokens] bool: queries that count.
            positions: MPNet's bias, [1 or batch, heads, tokens, tokens]; ModernBERT's cosines and
                sines, [1 or batch, tokens, head_width] each.
            counted: which heads count for what tokens receive; None: all.

        Returns:
            Mixed values, [batch, tokens, heads x head_width]; and the attention that each token
            receives, [batch, tokens].
        """
        query, key, value = self.projected(states, states)
        bias = None
        if self.scores == "rotated":
            cos, sin = (x.unsqueeze(1) for x in positions)
            query, key = rotated(query, cos, sin), rotated(key, cos, sin)
        elif self.scores == "stack_bias":
            own = getattr(self, "kept_heads", None)  # of the dense model's; no hook runs for `mix`
            bias = positions if own is None else positions[:, own]
        scores = query @ key.mT * self.head_width**-0.5
        added = added_mask(mask, bias, scores.dtype)
        weights = (scores if added is None else scores + added).softmax(-1)
        received = attention_received(weights, real, counted)
        if self.training:
            weights = nn.functional.dropout(weights, self.dropout_rate())
        return (weights @ value).transpose(1, 2).flatten(-2), received

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """As the library's block, or only the output projection of what `mix` has made."""
        if isinstance(attention_mask, Mixed):
            return self.finished(attention_mask.values), None
        library: Any = super()
        if args:
            return library.forward(hidden_states, attention_mask, *args, **kwargs)
        # ModernBERT's second argument is another one.
        return library.forward(hidden_states, attention_mask=attention_mask, **kwargs)


def attention_received(
    weights: Tensor, real: Tensor, counted: Sequence[bool] | None = None
) -> Tensor:
    """The attention that each token receives, summed over heads and real queries.

    Args:
        weights: [batch, heads, queries, keys].
        real: [batch, queries] bool.
        counted: which heads count; None: all.

    Returns:
        [batch, keys], without a gradient.
    """
    queries = real.to(weights.dtype)[:, None, None]  # [batch, 1, 1, queries]
    weights = weights.detach()
    if counted is not None:
        weights = weights[:, [head for head, counts in enumerate(counted) if counts]]
    return (queries @ weights).sum((1, 2))


def all_tokens(states: Tensor, mask: Tensor | None, keeps_last: bool) -> KeptTokens:
    """The tokens of whole rows.

    Args:
        states: [batch, tokens, width].
        mask: as for `real_tokens`.
        keeps_last: whether the last real token of each row is read, else the first token.
    """
    batch, tokens = states.shape[:2]
    real = real_tokens(states, mask)
    slots = torch.arange(tokens, device=states.device)[None]
    read = (real * slots).amax(-1) if keeps_last else None
    added = _added(real)
    return KeptTokens(
        places=slots.expand(batch, tokens),
        real=real,
        added=added,
        preferred=_preferred(added, slots == (0 if read is None else read[:, None])),
        lengths=real.sum(1, keepdim=True),
        whole=real,
        tenths=TENTHS,
        significance=torch.zeros_like(added),
        read=read,
        margin=None,
    )


def _added(real: Tensor) -> Tensor:
    return torch.where(real, 0.0, _MASKED)


def _preferred(added: Tensor, is_read: Tensor) -> Tensor:
    """The token that is read is first; slots without a token are last."""
    return torch.where(is_read, -_MASKED, added)


def choose_tokens(kept: KeptTokens, tenths: int) -> tuple[KeptTokens, Tensor]:
    """Choose the most significant of some tokens.

    Args:
        kept: the tokens.
        tenths: of a row's tokens that are chosen, rounded up, and one at least.

    Returns:
        The chosen tokens, and their slots among those given, [batch, chosen] int64.
    """
    ranks = kept.significance.float() + kept.preferred
    slots = most_significant(ranks, kept.whole, tenths)
    number = torch.arange(slots.shape[1], device=slots.device)[None]
    real = _is_chosen(number, kept, tenths)
    added = _added(real)
    chosen = KeptTokens(
        places=kept.places.gather(1, slots),
        real=real,
        added=added,
        preferred=_preferred(added, number == 0),
        lengths=kept.lengths,
        whole=kept.whole,
        tenths=tenths,
        significance=kept.significance.gather(1, slots),
        read=None,
        margin=_margin(kept, ranks, tenths),
    )
    return chosen, slots


def hide_tokens(kept: KeptTokens, tenths: int) -> tuple[KeptTokens, None]:
    """As `choose_tokens`, but all tokens stay, and those that are not chosen are hidden."""
    ranks = kept.significance.float() + kept.preferred
    order = most_significant(ranks, kept.whole, TENTHS)
    number = torch.arange(order.shape[1], device=order.device)[None].expand_as(order)
    real = _is_chosen(torch.empty_like(order).scatter_(1, order, number), kept, tenths)
    added = _added(real)
    hidden = replace(
        kept,
        real=real,
        added=added,
        preferred=_preferred(added, kept.preferred > 0),
        tenths=tenths,
        margin=_margin(kept, ranks, tenths),
    )
    return hidden, None


def _is_chosen(number: Tensor, kept: KeptTokens, tenths: int) -> Tensor:
    """Whether tokens with these numbers, from 0 by their ranks, are chosen; as `number`."""
    # number < ceil(tenths / TENTHS x length), and the first one always
    return number * TENTHS < (kept.lengths * tenths).clamp_min(1)


def most_significant(ranks: Tensor, whole: Tensor, tenths: int) -> Tensor:
    """The slots with the highest ranks, highest first; equal ones by their order.

    Args:
        ranks: [batch, tokens].
        whole: as in `KeptTokens`.
        tenths: of the whole rows' tokens that are chosen, rounded up, and one at least.

    Returns:
        [batch, chosen] int64.
    """
    most = max(1, (tenths * whole.shape[1] + TENTHS - 1) // TENTHS)
    return ranks.sort(dim=1, descending=True, stable=True).indices[:, :most]


def _margin(kept: KeptTokens, ranks: Tensor, tenths: int) -> Tensor | None:
    """The relative distance of the last token that is chosen from the next, or a smaller one."""
    if torch.compiler.is_exporting():
        return None
    ranks = ranks.sort(dim=1, descending=True).values
    count = -(-kept.lengths * tenths // TENTHS).clamp_max(-1)  # [batch, 1]
    last = ranks.gather(1, count - 1)
    after = ranks.gather(1, count.clamp_max(ranks.shape[1] - 1))
    # Slots without a token are far below; a row that loses none has nothing to choose.
    loses = count < kept.real.sum(1, keepdim=True)
    gap = torch.where(loses, (last - after) / last.abs().clamp_min(1e-6), torch.inf)[:, 0]
    return gap if kept.margin is None else torch.minimum(gap, kept.margin)


def at_slots(states: Tensor, slots: Tensor | None) -> Tensor:
    """States [batch, tokens, any] at slots [batch, kept]; None: all."""
    return states if slots is None else rows_at(states, slots)


def rows_at(states: Tensor, slots: Tensor) -> Tensor:
    """States [batch, tokens, any] at slots [batch, kept]; another operator in graphs."""
    batch, tokens, width = states.shape
    first = torch.arange(batch, device=slots.device)[:, None] * tokens
    chosen = states.reshape(batch * tokens, width).index_select(0, (slots + first).flatten())
    return chosen.reshape(batch, slots.shape[1], width)


def masked_at(kept: KeptTokens, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The mask of the tokens that are left.

    Args:
        kept: the tokens.
        mask: of the whole rows, as for `real_tokens`.
        dtype: of numbers to add.

    Returns:
        [batch, 1, queries or 1, kept] of the mask's type; numbers to add if there was none.
    """
    if mask is not None and mask.dim() == 4 and mask.shape[2] != 1:
        seen = _pairs_at(mask, kept.places)
        if mask.is_floating_point():
            return seen + kept.added[:, None, None].to(mask.dtype)
        return seen.bool() & kept.real[:, None, None]
    if mask is None or mask.is_floating_point():
        return kept.added[:, None, None].to(dtype if mask is None else mask.dtype)
    return kept.real[:, None, None]


def _rows_at(values: Tensor, places: Tensor) -> Tensor:
    """Entries of [1 or batch, tokens, any] at places [batch, kept]."""
    if values.shape[0] == 1:
        return values[0][places]
    return values.gather(1, places[..., None].expand(*places.shape, values.shape[-1]))


def _pairs_at(values: Tensor, places: Tensor) -> Tensor:
    """Entries of [1 or batch, heads, tokens, tokens] for pairs of places, [batch, heads, …]."""
    tokens, kept = values.shape[-1], places.shape[1]
    pairs = places[:, :, None] * tokens + places[:, None]  # [batch, kept, kept]
    flat = values.flatten(-2)  # [1 or batch, heads, tokens x tokens]
    if values.shape[0] == 1:
        return flat[0][:, pairs].transpose(0, 1)
    index = pairs.flatten(-2)[:, None].expand(-1, values.shape[1], -1)
    return flat.gather(-1, index).reshape(*index.shape[:2], kept, kept)


def select_tokens(model: nn.Module, paths: Mapping[str, Any]) -> None:
    """Let the layers of an encoder hand on fewer tokens, in place; the last one computes one.

    Args:
        model: the encoder; layers that it skips hand on what they get.
        paths: `read_token` of `config.json`, with `handed_on`; see `modeling_tokens`.
    """
    stack = paths["layer"].rpartition(".")[0]
    layers: dict[str, Any] = {
        f"{stack}.{name}": layer
        for name, layer in model.get_submodule(stack).named_children()
        if not getattr(layer, "is_skipped", False)
    }
    compute_one_token(model, {**paths, "layer": list(layers)[-1]})
    left = TENTHS
    for layer, hands_on in zip(layers.values(), [*paths["handed_on"], TENTHS], strict=True):
        if hands_on >= TENTHS and left == TENTHS:
            continue  # it gets all tokens, and hands on all
        kind: Any = type(layer)
        layer.__class__ = mixed_class(SelectsTokens, kind)
        layer.hands_on, layer.attention_path = hands_on, paths["block"]
        layer.norm_path, layer.scores = paths["norm"], paths["scores"]
        layer.keeps_last = paths["reads_last"]
        if hands_on < left:
            HandsOutAttention.open(layer, paths)
            left = hands_on
