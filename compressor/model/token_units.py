"""Whether tokens can be units of a model: whether its layers may hand on fewer than they get."""

from __future__ import annotations

from torch import nn

from compressor.model.architectures import architecture_of
from compressor.model.layers import depth_at
from compressor.model.one_token import one_token_paths


def why_all_tokens(model: nn.Module) -> str:
    """Why a model needs all tokens in all layers, in words; empty: tokens can be units of it."""
    entry = architecture_of(model)
    if entry.decoder is not None:
        return "its decoder reads the states of all tokens"
    if entry.scores == "disentangled":
        return "its attention scores need the distances of all tokens"
    paths = one_token_paths(model)
    if paths is None:
        return "its head reads the states of all tokens"
    if depth_at(model, f"{paths['layer'].rpartition('.')[0]}.") < 2:
        return "its encoder has one layer, which hands on nothing"
    return ""
