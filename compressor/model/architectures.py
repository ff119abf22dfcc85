"""Where each supported architecture keeps the projections of its sublayers: one literal table.

To add an architecture, add a line to `ARCHITECTURES` and a tiny configuration of it to
`tests/helpers/tiny.py`; every surgery, export and scoring test then runs on it.

To add a kind of sublayer, add its name to `Kind` and its `SublayerPaths` to the architectures that
have it. Which rows of an input projection belong to a unit is `modeling_pruned.unit_columns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from compressor.errors import InputError
from compressor.model.sublayers import Kind, Sublayer

if TYPE_CHECKING:
    from torch import nn


CLASSIFIER = "AutoModelForSequenceClassification"
TRANSLATOR = "AutoModelForSeq2SeqLM"


@dataclass(frozen=True)
class SublayerPaths:
    """Paths of one kind of sublayer; `{i}` stands for the layer number.

    Args:
        layer: the module that holds the sublayer; all other paths are relative to it.
        block: the module that is replaced when no unit is left; an attention's splits its input
            into heads.
        inputs: role -> path of each projection whose rows belong to units.
        output: the projection whose columns belong to units.
        unit_count: attribute of the block that holds the number of units; None if each column of
            the output projection is a unit of its own.
        width: attribute of the block that holds units x unit width, if it has one.
        stand_in: what replaces the block when no unit is left, as in `modeling_pruned.STAND_INS`.
    """

    kind: Kind
    layer: str
    block: str
    inputs: Mapping[str, str]
    output: str
    unit_count: str | None
    width: str | None = None
    stand_in: str = "attention"


@dataclass(frozen=True)
class Architecture:
    """What the project must know about one `config.model_type`.

    Args:
        task: name of the task that its models are for.
        auto_class: the class of transformers that loads them.
        sublayers: paths of every kind of sublayer, in the canonical order.
        token_type_ids: whether the model takes them as an input.
        unused: patterns of weights that checkpoints may hold beside those of the class: heads of
            other tasks, which change nothing that the model says. All others must be used.
    """

    task: str
    auto_class: str
    sublayers: tuple[SublayerPaths, ...]
    token_type_ids: bool = False
    unused: tuple[str, ...] = ()


def _feed_forward(kind: Kind, layer: str, up: str, down: str, block: str = "") -> SublayerPaths:
    return SublayerPaths(
        kind=kind,
        layer=layer,
        block=block or up,
        inputs={"up": up},
        output=down,
        unit_count=None,
        stand_in="feed_forward",
    )


def _encoder(prefix: str, token_type_ids: bool, unused: tuple[str, ...]) -> Architecture:
    """BERT and its descendants that kept its module names."""
    layer = f"{prefix}.encoder.layer.{{i}}"
    attention = SublayerPaths(
        kind="encoder_self",
        layer=f"{layer}.attention",
        block="self",
        inputs={"query": "self.query", "key": "self.key", "value": "self.value"},
        output="output.dense",
        unit_count="num_attention_heads",
        width="all_head_size",
    )
    neurons = _feed_forward(
        "encoder_ffn", layer, "intermediate.dense", "output.dense", block="intermediate"
    )
    return Architecture(
        task="classification",
        auto_class=CLASSIFIER,
        sublayers=(attention, neurons),
        token_type_ids=token_type_ids,
        unused=unused,
    )


def _bart_paths(kind: Kind, stack: str, block: str) -> SublayerPaths:
    return SublayerPaths(
        kind=kind,
        layer=f"model.{stack}.layers.{{i}}",
        block=block,
        inputs={"query": f"{block}.q_proj", "key": f"{block}.k_proj", "value": f"{block}.v_proj"},
        output=f"{block}.out_proj",
        unit_count="num_heads",
    )


_BART = Architecture(
    task="translation",
    auto_class=TRANSLATOR,
    sublayers=(
        _bart_paths("encoder_self", "encoder", "self_attn"),
        _bart_paths("decoder_self", "decoder", "self_attn"),
        _bart_paths("cross", "decoder", "encoder_attn"),
        _feed_forward("encoder_ffn", "model.encoder.layers.{i}", "fc1", "fc2"),
        _feed_forward("decoder_ffn", "model.decoder.layers.{i}", "fc1", "fc2"),
    ),
)

_DISTILBERT = Architecture(
    task="classification",
    auto_class=CLASSIFIER,
    sublayers=(
        SublayerPaths(
            kind="encoder_self",
            layer="distilbert.transformer.layer.{i}",
            block="attention",
            inputs={
                "query": "attention.q_lin",
                "key": "attention.k_lin",
                "value": "attention.v_lin",
            },
            output="attention.out_lin",
            unit_count="n_heads",
        ),
        _feed_forward("encoder_ffn", "distilbert.transformer.layer.{i}", "ffn.lin1", "ffn.lin2"),
    ),
    unused=(r"^vocab_(transform|layer_norm|projector)\.",),
)

ARCHITECTURES: dict[str, Architecture] = {
    "marian": _BART,
    "bart": _BART,
    "mbart": _BART,
    "bert": _encoder("bert", token_type_ids=True, unused=(r"^cls\.",)),
    "roberta": _encoder(
        "roberta", token_type_ids=False, unused=(r"^lm_head\.", r"^(roberta\.)?pooler\.dense\.")
    ),
    "distilbert": _DISTILBERT,
    "electra": _encoder(
        "electra",
        token_type_ids=True,
        unused=(r"^(discriminator_predictions|generator_predictions|generator_lm_head)\.",),
    ),
}


def architecture(model_type: str, where: str = "the checkpoint") -> Architecture:
    """The table's entry for `config.model_type`.

    Raises:
        InputError: the architecture is not supported; the message lists those that are.
    """
    if model_type not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise InputError(
            f"architecture {model_type!r} of {where} is not supported; supported are {supported}",
            id="architecture-unsupported",
        )
    return ARCHITECTURES[model_type]


def find_sublayers(model: nn.Module) -> list[Sublayer]:
    """All sublayers of a dense model whose units can be removed, by kind, then by layer number.

    Unit counts and widths are read from the model's modules, so it must not have been pruned yet;
    use `compressor.model.checkpoint` for pruned ones.

    Raises:
        InputError: none are found, because the model was loaded with another class.
    """
    entry = architecture(model.config.model_type)  # type: ignore[union-attr,arg-type]
    modules = dict(model.named_modules())
    sublayers = []
    for paths in entry.sublayers:
        for index in count():
            root = paths.layer.format(i=index)
            if f"{root}.{paths.output}" not in modules:
                break
            block = f"{root}.{paths.block}"
            columns = int(modules[f"{root}.{paths.output}"].in_features)
            unit_count = paths.unit_count
            units = columns if unit_count is None else int(getattr(modules[block], unit_count))
            sublayers.append(
                Sublayer(
                    kind=paths.kind,
                    index=index,
                    units=units,
                    unit_width=columns // units,
                    block=block,
                    inputs={role: f"{root}.{path}" for role, path in paths.inputs.items()},
                    output=f"{root}.{paths.output}",
                )
            )
    if not sublayers:
        raise InputError(
            f"{type(model).__name__} has none of the layers that are pruned; load the checkpoint "
            f"with {entry.auto_class} (task {entry.task})",
            id="sublayers-missing",
        )
    return sublayers
