"""Encoders that hand on fewer tokens from layer to layer, in place and for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from compressor.model.modeling_kept import TENTHS, KeptTokens
from compressor.model.modeling_selection import SelectsTokens, select_tokens
from compressor.model.modeling_tokens import ReadsOneToken
from compressor.model.one_token import one_token_paths


def selection_paths(model: nn.Module, tenths: Sequence[int]) -> dict[str, Any]:
    """What `read_token` of `config.json` says of an encoder that hands on fewer tokens.

    Args:
        model: the encoder, whose logits depend on one token's last state.
        tenths: of a row's tokens that each layer but the last hands on (`Mask.handed_on`).
    """
    paths = one_token_paths(model)
    assert paths is not None, "tokens are units only where one token is read"
    return paths | {"handed_on": list(tenths)}


def hand_on(model: nn.Module, tenths: Sequence[int]) -> None:
    """Let the layers of an encoder hand on fewer tokens, in place.

    Args:
        model: the encoder; layers that it skips hand on what they get.
        tenths: of a row's tokens that each layer that is left, but the last, hands on.
    """
    if hands_on_fewer(tenths):
        select_tokens(model, selection_paths(model, tenths))


def layers_left(model: nn.Module) -> list[str]:
    """Paths of the layers of an encoder that reads one token, but those that it skips."""
    stack = selection_paths(model, ())["layer"].rpartition(".")[0]
    return [
        f"{stack}.{name}"
        for name, layer in model.get_submodule(stack).named_children()
        if not getattr(layer, "is_skipped", False)
    ]


def hands_on_fewer(tenths: Sequence[int]) -> bool:
    """Whether layers that hand on these tenths of a row's tokens leave any out."""
    return bool(tenths) and min(tenths) < TENTHS


@contextmanager
def handing_on(
    model: nn.Module,
    tenths: Sequence[int],
    heads: Mapping[str, Sequence[bool]] | None = None,
    hides: bool = False,
) -> Iterator[None]:
    """An encoder whose layers hand on fewer tokens, while the context lasts.

    Args:
        model: the encoder.
        tenths: as for `hand_on`; empty: all tokens.
        heads: layer's path -> which of its heads are not gated, for layers where some may be.
        hides: whether the other tokens are computed too, and hidden from later layers.
    """
    classes = {module: type(module) for module in model.modules()}
    last = getattr(model, "one_token_layer", None)
    try:
        hand_on(model, tenths)
        for path, module in model.named_modules():
            if isinstance(module, SelectsTokens):
                counted = (heads or {}).get(path)
                module.masks, module.counted = hides, None if counted is None else tuple(counted)
        yield
    finally:
        for module, kind in classes.items():
            if isinstance(module, SelectsTokens):
                module.masks, module.counted = False, None
                module.latest = None
            module.__class__ = kind
        vars(model)["one_token_layer"] = last


def selecting_layers(model: nn.Module) -> list[SelectsTokens]:
    """The layers that hand on fewer tokens than the row has."""
    return [module for module in model.modules() if isinstance(module, SelectsTokens)]


def tokens_left(model: nn.Module, layer_path: str) -> KeptTokens | None:
    """The tokens that a layer handed on in its latest run; None: all, or the one that is read."""
    layer = model.get_submodule(layer_path)
    if isinstance(layer, ReadsOneToken) and not layer.computes_all:
        return None
    return layer.latest if isinstance(layer, SelectsTokens) else None


# A choice of tokens whose significance differs relatively by less is one that rounding decides.
DECIDED = 1e-4


def choice_margins(model: nn.Module) -> Tensor | None:
    """How certain the choice of tokens was in the latest run.

    Returns:
        The least relative difference between a token that was kept and one that was not, of each
        row, [batch]; infinity for a row that lost none. None where the model keeps all tokens.
    """
    layers = selecting_layers(model)
    latest = layers[-1].latest if layers else None
    return None if latest is None else latest.margin


def undecided_text(rows: int) -> str:
    """What a check says of rows that it left out, since rounding decides which tokens they keep."""
    return f"; {rows} rows left out, whose tokens rounding decides" if rows else ""


def at_tokens(states: Tensor, kept: KeptTokens | None) -> Tensor:
    """States [batch, tokens, any] of whole rows at the tokens that are left."""
    if kept is None:
        return states
    index = kept.places[..., None].expand(-1, -1, states.shape[-1])
    return states.gather(1, index)
