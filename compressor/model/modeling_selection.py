"""Encoders whose layers hand on a share of a row's tokens, for `modeling_pruned.py`.

Both need `modeling_kept.py`, `modeling_tokens.py` and transformers alone. A token's significance is
the attention that it receives, summed over heads and over the row's real queries (Goyal et al.
2020, "PoWER-BERT"). After a layer's attention the row goes on with its most significant tokens, as
many as the layer's tenths of the row's own length say, rounded up; the token that is read always
stays. So what a row is answered depends on the row alone, whatever else is in its batch. Equal
significance goes by place.

`handed_on` in `read_token` of `config.json` has the tenths of each layer but the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .modeling_kept import (
    TENTHS,
    KeptTokens,
    all_tokens,
    angles_at,
    at_slots,
    choose_tokens,
    hide_tokens,
    kept_tokens,
    masked_at,
    pairs_at,
)
from .modeling_tokens import (
    KEPT_TOKENS,
    OpenAttention,
    added_mask,
    compute_one_token,
    mixed_class,
    rotated,
)


@dataclass(frozen=True)
class Mixed:
    """What attention has mixed for the tokens that are kept, in place of the block's mask."""

    values: Tensor  # [batch, kept, heads x head_width], before the output projection


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
    latest: KeptTokens | None = None  # the tokens that its latest run hands on

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
        if not torch.compiler.is_exporting():
            self.latest = kept  # before what follows, which an observer may end
        returned = library.forward(hidden_states, attention_mask, *args, **kwargs)
        setattr(returned[0] if isinstance(returned, tuple) else returned, KEPT_TOKENS, kept)
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
            angles = tuple(angles_at(x, kept.places) for x in kwargs["position_embeddings"])
            return args, kwargs | {"position_embeddings": angles}
        bias = pairs_at(self._positions(args, kwargs), kept.places)
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
        layer.hands_on, layer.attention_path = min(hands_on, left), paths["block"]
        layer.norm_path, layer.scores = paths["norm"], paths["scores"]
        layer.keeps_last = paths["reads_last"]
        if hands_on < left:
            HandsOutAttention.open(layer, paths)
            left = hands_on
