"""The supported architectures: one entry each, with all that the project must know about one.

An entry is data about a `config.model_type` of transformers; a relative of an architecture is its
entry with a few fields replaced. They are in `entries.py`. Which rows of an input projection belong
to a unit is `modeling_pruned.unit_rows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from compressor.errors import InputError
from compressor.model.architecture import ENCODER, Architecture, head_in
from compressor.model.entries import ARCHITECTURES as ARCHITECTURES
from compressor.model.sublayers import Sublayer, is_self_attention

if TYPE_CHECKING:
    from torch import nn

# Architectures that cannot be supported as they are, with the reason.
_REASONS = {
    "albert": ", since all of its layers share one set of weights, so that a unit cannot leave one "
    "layer alone",
    "nllb-moe": ", since its feed-forward parts are experts, and each token takes a few of them; "
    "NLLB without experts is m2m_100",
    "none": "; its config.json has no model_type",
}


def architecture(model_type: str, where: str = "the checkpoint") -> Architecture:
    """The entry for `config.model_type`; raises InputError where it is not supported."""
    if model_type not in ARCHITECTURES:
        raise InputError(
            f"architecture {model_type!r} of {where} is not supported"
            f"{_REASONS.get(model_type, '')}; supported are these encoders and encoder–decoders "
            f"of texts: {', '.join(sorted(ARCHITECTURES))}",
            id="architecture-unsupported",
        )
    return ARCHITECTURES[model_type]


def architecture_of(model: Any) -> Architecture:
    """The entry for a model of transformers."""
    config = model.config
    entry = architecture(config.model_type)
    entry = entry.with_feed_forward(getattr(config, "feed_forward_proj", None))
    if not hasattr(model, entry.base):
        return entry.for_class(ENCODER.auto_class)
    return entry.for_class((head_in(type(model).__name__) or entry.head).auto_class)


def require_depth(entry: Architecture, encoder: int, decoder: int, where: str) -> None:
    """Raise InputError if `generate` of transformers cannot handle so many layers of each stack."""
    if entry.decoder and entry.decoder.not_deeper and decoder > encoder:
        raise InputError(
            f"{where} has {encoder} layers in the encoder and {decoder} in the decoder, and "
            "`generate` of transformers makes a cache for as many as the encoder has; keep at "
            "least as many layers in the encoder",
            id="decoder-deeper-than-encoder",
        )


def layer_paths(model: nn.Module) -> list[str]:
    """Paths of all Transformer layers of a model, pruned or not, skipped ones included."""
    entry = architecture_of(model)
    stacks = {entry.full_paths(x)["layer"].partition("{i}")[0] for x in entry.sublayers}
    return [f"{stack}{i}" for stack in sorted(stacks) for i in range(_depth(model, stack))]


def _depth(model: nn.Module, stack: str) -> int:
    """How many layers there are at a path that ends before their numbers."""
    return len(cast("nn.ModuleList", model.get_submodule(stack.removesuffix("."))))


def find_sublayers(model: nn.Module) -> list[Sublayer]:
    """All sublayers of a dense model whose units can be removed, by kind, then by layer number.

    Unit counts and widths are read from the model's modules, so it must not have been pruned yet;
    use `compressor.model.checkpoint` for pruned ones. Skipped layers are left out.
    """
    from compressor.model.modeling_pruned import find_sublayer  # imports torch

    entry = architecture_of(model)
    modules = {path for path, _ in model.named_modules()}
    sublayers = []
    for paths in entry.sublayers:
        full = entry.full_paths(paths)
        for index in range(_depth(model, full["layer"].partition("{i}")[0])):
            layer = full["layer"].format(i=index)
            if f"{layer}.{paths.output}" not in modules:
                continue  # a layer that is skipped (`compressor.model.surgery`)
            placed = find_sublayer(model, full, index)
            biased_by = None
            if is_self_attention(paths.kind):
                tables = {"every_layer": layer, "first_layer": full["layer"].format(i=0)}
                if paths.position_bias in tables:
                    biased_by = f"{tables[paths.position_bias]}.{paths.block}"
            inputs = {
                role: f"{layer}.{path}"
                for role, path in {**paths.inputs, **paths.optional}.items()
                if f"{layer}.{path}" in placed.inputs
            }
            sublayers.append(
                Sublayer(
                    kind=paths.kind,
                    index=index,
                    units=placed.units,
                    unit_width=placed.unit_width,
                    block=placed.block,
                    inputs=inputs,
                    output=placed.output,
                    biased_by=biased_by,
                    scaled=paths.scaled,
                )
            )
    return sublayers
