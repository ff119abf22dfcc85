"""The supported architectures: one entry each, with all that the project must know about one.

An entry is data about a `config.model_type` of transformers; a relative of an architecture is its
entry with a few fields replaced. To add one, add an entry to `ARCHITECTURES` and a tiny
configuration to `tests/helpers/tiny.py`: to `BUILDERS`, and every test of scoring, surgery, saving,
export and generation runs on it, or to the relatives there, which a few tests go through as a
whole.

To add a kind of sublayer, add its name to `Kind` and its `SublayerPaths` to the architectures that
have it. Which rows of an input projection belong to a unit is `modeling_pruned.unit_rows`.
"""

from __future__ import annotations

from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.model.architecture import Architecture, SublayerPaths
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
    "nllb-moe": ", since its feed-forward parts are experts, of which each token takes others; "
    "NLLB without experts is m2m_100",
    "none": "; its config.json has no model_type",
    **dict.fromkeys(
        ("encoder-decoder", "vision-encoder-decoder", "speech-encoder-decoder"),
        ", since it joins two models of any kinds",
    ),
}
# The lists of transformers that have a `model_type`, the first that does -> what such models are.
_KINDS = {
    "SPEECH_SEQ_2_SEQ": "a model of speech",
    "CTC": "a model of speech",
    "AUDIO_CLASSIFICATION": "a model of speech",
    "ZERO_SHOT_IMAGE_CLASSIFICATION": "a model of images and texts",
    "IMAGE_CLASSIFICATION": "a model of images",
    "IMAGE_TEXT_TO_TEXT": "a model of images and texts",
    "MASKED_LM": "",
    "SEQ_TO_SEQ_CAUSAL_LM": "",
    "CAUSAL_LM": "a decoder alone, which continues texts",
}


def architecture(model_type: str, where: str = "the checkpoint") -> Architecture:
    """The entry for `config.model_type`.

    Raises:
        InputError: the architecture is not supported; the message lists those that are.
    """
    if model_type not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        reason = _REASONS.get(model_type) or _kind(model_type)
        raise InputError(
            f"architecture {model_type!r} of {where} is not supported{reason}; supported are "
            f"{supported}",
            id="architecture-unsupported",
        )
    return ARCHITECTURES[model_type]


def _kind(model_type: str) -> str:
    """What models of a type are that is not for encoders or encoder–decoders of texts."""
    from transformers.models.auto import modeling_auto

    for name, what in _KINDS.items():
        if model_type in getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES", ()):
            texts = "; only encoders and encoder–decoders of texts are pruned"
            return f", since it is {what}{texts}" if what else ""
    return ""


def require_depth(entry: Architecture, encoder: int, decoder: int, where: str) -> None:
    """Check that the library can generate with so many layers of each stack.

    Raises:
        InputError: it cannot.
    """
    if entry.decoder and entry.decoder.not_deeper and decoder > encoder:
        raise InputError(
            f"{where} has {encoder} layers in the encoder and {decoder} in the decoder, and "
            "`generate` of transformers makes a cache for as many as the encoder has; keep at "
            "least as many layers in the encoder",
            id="decoder-deeper-than-encoder",
        )


def architecture_of(model: Any) -> Architecture:
    """The entry for a model of transformers."""
    config = model.config
    entry = architecture(config.model_type)
    entry = entry.with_feed_forward(getattr(config, "feed_forward_proj", None))
    if not hasattr(model, entry.base):
        return entry.for_class(ENCODER.auto_class)
    return entry.for_class((head_in(type(model).__name__) or entry.head).auto_class)


def _biased_by(paths: SublayerPaths, root: str, index: int) -> str | None:
    """Path of the attention whose table of relative positions one's bias is from."""
    if paths.position_bias in (None, "stack") or paths.kind == "cross":
        return None
    layer = root.format(i=0 if paths.position_bias == "first_layer" else index)
    return f"{layer}.{paths.block}"


def layer_paths(model: nn.Module) -> list[str]:
    """Paths of all Transformer layers of a model, pruned or not, skipped ones included."""
    entry = architecture_of(model)
    modules = {path for path, _ in model.named_modules()}
    stacks = {entry.full_paths(x)["layer"].partition("{i}")[0] for x in entry.sublayers}
    numbered = ((stack, map(str, count())) for stack in sorted(stacks))
    return [
        path
        for stack, numbers in numbered
        for path in takewhile(modules.__contains__, (stack + number for number in numbers))
    ]


def find_sublayers(model: nn.Module) -> list[Sublayer]:
    """All sublayers of a dense model whose units can be removed, by kind, then by layer number.

    Unit counts and widths are read from the model's modules, so it must not have been pruned yet;
    use `compressor.model.checkpoint` for pruned ones.

    Raises:
        InputError: none are found, because the model was loaded with another class.
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
            if f"{full['layer']}.{paths.output}".format(i=index) not in modules:
                continue  # a layer that is skipped (`compressor.model.depth`)
            placed = find_sublayer(model, full, index)
            roles = {path: role for role, path in {**paths.inputs, **paths.optional}.items()}
            start = full["layer"].format(i=index) + "."
            sublayers.append(
                Sublayer(
                    kind=paths.kind,
                    index=index,
                    units=placed.units,
                    unit_width=placed.unit_width,
                    block=placed.block,
                    inputs={roles[path.removeprefix(start)]: path for path in placed.inputs},
                    output=placed.output,
                    biased_by=_biased_by(paths, full["layer"], index),
                    scaled=paths.scaled,
                )
            )
    if not sublayers:
        raise InputError(
            f"{type(model).__name__} has none of the layers that are pruned; load the checkpoint "
            f"with {entry.auto_class} (task {entry.task})",
            id="sublayers-missing",
        )
    return sublayers
