"""Which tokens of its rows an encoder has left, and the choice of those that go on.

Needs transformers alone, as `modeling_selection.py`, whose layers use it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .modeling_tokens import KEPT_TOKENS, real_tokens

TENTHS = 10
_TIE = 1e-5  # of significance, between tokens that are next to each other
_MASKED = -1e4  # added to the scores of keys that are none; exp(-1e4) is zero, also in float16


@dataclass(frozen=True)
class KeptTokens:
    """Which tokens of the whole rows some states are of, the most significant first."""

    places: Tensor  # [batch, kept] int64, in the row
    real: Tensor  # [batch, kept] bool: False where a shorter row of the batch has no token
    added: Tensor  # [batch, kept] float32: what that adds to attention scores
    preferred: Tensor  # [batch, kept] float32: what is added to significance, to rank tokens
    lengths: Tensor  # [batch, 1] int64: real tokens of the whole rows, one at least
    numbers: Tensor  # [1, tokens] int64: 0, TENTHS, 2 TENTHS, … of whole rows with padding
    tenths: int  # of the rows' tokens that are left
    significance: Tensor  # [batch, kept], of the last layer that had heads
    read: Tensor | None  # [batch] int64: the slot of the token that is read; None: the first
    # [batch]: the least relative difference between the significance of a token that was kept and
    # of one that was not, over all layers so far; None in a graph.
    margin: Tensor | None


def kept_tokens(states: Tensor) -> KeptTokens | None:
    """The tokens that some states are of; None: all."""
    kept: KeptTokens | None = getattr(states, KEPT_TOKENS, None)
    return kept


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
    # The token that is read is first, slots without a token are last, and of equal tokens the one
    # with the lower place is first: not every engine keeps the order of equal values.
    is_read = slots == (0 if read is None else read[:, None])
    by_place = torch.where(real, slots * -_TIE, _MASKED)
    return KeptTokens(
        places=slots.expand(batch, tokens),
        real=real,
        added=added,
        preferred=torch.where(is_read, -_MASKED, by_place),
        lengths=real.sum(1, keepdim=True).clamp_min(1),
        numbers=slots * TENTHS,
        tenths=TENTHS,
        significance=torch.zeros_like(added),
        read=read,
        margin=None,
    )


def _added(real: Tensor) -> Tensor:
    return torch.where(real, 0.0, _MASKED)


def choose_tokens(kept: KeptTokens, tenths: int) -> tuple[KeptTokens, Tensor]:
    """Choose the most significant of some tokens.

    Args:
        kept: the tokens.
        tenths: of a row's tokens that are chosen, rounded up, and one at least.

    Returns:
        The chosen tokens, and their slots among those given, [batch, chosen] int64.
    """
    ranks = kept.significance.float() + kept.preferred
    slots = most_significant(ranks, kept.numbers, tenths)
    real = _is_chosen(first_numbers(kept.numbers, slots, tenths), kept, tenths)
    chosen = KeptTokens(
        places=kept.places.gather(1, slots),
        real=real,
        added=_added(real),
        preferred=torch.where(real, kept.preferred.gather(1, slots), _MASKED),
        lengths=kept.lengths,
        numbers=kept.numbers,
        tenths=tenths,
        significance=kept.significance.gather(1, slots),
        read=None,
        margin=_margin(kept, ranks, tenths),
    )
    return chosen, slots


def hide_tokens(kept: KeptTokens, tenths: int) -> tuple[KeptTokens, None]:
    """As `choose_tokens`, but all tokens stay, and those that are not chosen are hidden."""
    ranks = kept.significance.float() + kept.preferred
    order = most_significant(ranks, kept.numbers, TENTHS)
    numbers = kept.numbers.expand_as(order)
    real = _is_chosen(torch.empty_like(order).scatter_(1, order, numbers), kept, tenths)
    hidden = replace(
        kept,
        real=real,
        added=_added(real),
        preferred=torch.where(real, kept.preferred, _MASKED),
        tenths=tenths,
        margin=_margin(kept, ranks, tenths),
    )
    return hidden, None


def _is_chosen(numbers: Tensor, kept: KeptTokens, tenths: int) -> Tensor:
    """Whether tokens are chosen; `numbers` are TENTHS times 0, 1, … by their ranks."""
    # number < ceil(tenths / TENTHS x length), and the first one always
    return numbers < (kept.lengths * tenths if tenths else 1)


def most_significant(ranks: Tensor, numbers: Tensor, tenths: int) -> Tensor:
    """The slots with the highest ranks, highest first; equal ones by their order.

    Args:
        ranks: [batch, tokens].
        numbers: as in `KeptTokens`; their size alone counts.
        tenths: of the whole rows' tokens that are chosen, rounded up, and one at least.

    Returns:
        [batch, chosen] int64.
    """
    most = max(1, (tenths * numbers.shape[1] + TENTHS - 1) // TENTHS)
    return ranks.sort(dim=1, descending=True, stable=True).indices[:, :most]


def first_numbers(numbers: Tensor, slots: Tensor, tenths: int) -> Tensor:
    """The numbers of tokens that were chosen.

    Args:
        numbers: as in `KeptTokens`.
        slots: that `most_significant` has chosen.
        tenths: that it was given.

    Returns:
        [1, chosen] int64.
    """
    return numbers[:, : slots.shape[1]]


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
        seen = pairs_at(mask, kept.places)
        if mask.is_floating_point():
            return seen + kept.added[:, None, None].to(mask.dtype)
        return seen.bool() & kept.real[:, None, None]
    if mask is None or mask.is_floating_point():
        return kept.added[:, None, None].to(dtype if mask is None else mask.dtype)
    return kept.real[:, None, None]


def angles_at(values: Tensor, places: Tensor) -> Tensor:
    """Entries of [1 or batch, tokens, any] at places [batch, kept]."""
    if values.shape[0] == 1:
        return values[0][places]
    return values.gather(1, places[..., None].expand(*places.shape, values.shape[-1]))


def pairs_at(values: Tensor, places: Tensor) -> Tensor:
    """Entries of [1 or batch, heads, tokens, tokens] for pairs of places, [batch, heads, …]."""
    tokens, kept = values.shape[-1], places.shape[1]
    pairs = places[:, :, None] * tokens + places[:, None]  # [batch, kept, kept]
    flat = values.flatten(-2)  # [1 or batch, heads, tokens x tokens]
    if values.shape[0] == 1:
        return flat[0][:, pairs].transpose(0, 1)
    index = pairs.flatten(-2)[:, None].expand(-1, values.shape[1], -1)
    return flat.gather(-1, index).reshape(*index.shape[:2], kept, kept)
