"""The supported architectures: one entry each, with all that the project must know about one.

An entry is data about a `config.model_type` of transformers; a relative of an architecture is its
entry with a few fields replaced. To add one, add an entry to `ARCHITECTURES` and a tiny
configuration to `tests/helpers/tiny.py`: to `BUILDERS`, and every test of scoring, surgery, saving,
export and generation runs on it, or to the relatives there, which a few tests take through the
whole journey.

To add a kind of sublayer, add its name to `Kind` and its `SublayerPaths` to the architectures that
have it. Which rows of an input projection belong to a unit is `modeling_pruned.unit_rows`.
"""

from __future__ import annotations

from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.model.architecture import Architecture
from compressor.model.encoder_decoders import BART, M2M100, MARIAN, MBART, MT5, PEGASUS, T5, UMT5
from compressor.model.encoders import BERT, DEBERTA, DISTILBERT, ELECTRA, MODERNBERT, MPNET, ROBERTA
from compressor.model.heads import ENCODER, head_in
from compressor.model.sublayers import Sublayer

if TYPE_CHECKING:
    from torch import nn

ARCHITECTURES: dict[str, Architecture] = {
    "marian": MARIAN,
    "bart": BART,
    "mbart": MBART,
    "bert": BERT,
    "roberta": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "mpnet": MPNET,
    "modernbert": MODERNBERT,
    "deberta-v2": DEBERTA,
    "t5": T5,
    "mt5": MT5,
    "umt5": UMT5,
    "pegasus": PEGASUS,
    "m2m_100": M2M100,
}

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
    modules = {path for path, _ in model.named_modules()}
    stacks = {entry.full_paths(x)["layer"].partition("{i}")[0] for x in entry.sublayers}
    paths: list[str] = []
    for stack in sorted(stacks):
        paths += takewhile(modules.__contains__, (f"{stack}{number}" for number in count()))
    return paths


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
        stack = full["layer"].partition("{i}")[0]
        for index in count():
            if f"{stack}{index}" not in modules:
                break
            layer = full["layer"].format(i=index)
            if f"{layer}.{paths.output}" not in modules:
                continue  # a layer that is skipped (`compressor.model.depth`)
            placed = find_sublayer(model, full, index)
            roles = {**paths.inputs, **paths.optional}
            inputs = {role: f"{layer}.{path}" for role, path in roles.items()}
            biased_by = None
            if paths.kind != "cross" and paths.position_bias in ("every_layer", "first_layer"):
                every = paths.position_bias == "every_layer"
                biased_by = f"{layer if every else full['layer'].format(i=0)}.{paths.block}"
            sublayers.append(
                Sublayer(
                    kind=paths.kind,
                    index=index,
                    units=placed.units,
                    unit_width=placed.unit_width,
                    block=placed.block,
                    inputs={role: path for role, path in inputs.items() if path in placed.inputs},
                    output=placed.output,
                    biased_by=biased_by,
                    scaled=paths.scaled,
                )
            )
    return sublayers
