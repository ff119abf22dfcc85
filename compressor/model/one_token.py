"""The one token that models read of their last layer, and where that layer is."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from compressor.model.architectures import architecture_of
from compressor.model.layers import depth_at
from compressor.model.modeling_tokens import compute_one_token


def one_token_paths(model: nn.Module) -> dict[str, Any] | None:
    """Find the last layer of an encoder, for `modeling_tokens.compute_one_token`.

    Returns:
        The argument `paths` of that function; None where logits depend on the last states of all
        tokens.
    """
    entry, config = architecture_of(model), cast(Any, model.config)
    reads = None if entry.decoder else entry.head.token_read(model)
    if reads is None or entry.needs_all_tokens(config):
        return None
    if reads == "last" and entry.scores == "disentangled":
        return None  # its graphs have products with positions for the first token alone
    (paths,) = (x for x in entry.sublayers if x.kind == "encoder_self")
    full = entry.full_paths(paths)
    stack, _, inner = full["layer"].partition("{i}")
    inner = f"{inner}.".removeprefix(".")  # BERT's paths are those in a part of the layer
    return {
        "layer": f"{stack}{depth_at(model, stack) - 1}",
        "block": inner + paths.block,
        "inputs": [inner + path for path in full["inputs"]],
        "output": inner + paths.output,
        "norm": entry.attention_norm,
        "head_width": getattr(config, entry.width) // getattr(config, entry.encoder.heads),
        "scores": entry.scores,
        "reads_last": reads == "last",
    }


def read_one_token(model: nn.Module) -> None:
    """Let an encoder compute, in place, only what is read of its last layer; others are unchanged.

    The logits stay what they were, up to rounding.
    """
    paths = one_token_paths(model)
    if paths is not None:
        compute_one_token(model, paths)
