"""Where each supported architecture keeps its attention projections: one literal table.

To add an architecture, add a line to `ARCHITECTURES` and a tiny configuration of it to
`tests/tiny.py`; every surgery, export and scoring test then runs on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from compressor.errors import InputError
from compressor.heads import AttentionLayer, Kind

if TYPE_CHECKING:
    from torch import nn

Task = Literal["translation", "classification"]


@dataclass(frozen=True)
class AttentionPaths:
    """Paths of one kind of attention; `{i}` stands for the layer number.

    `block` is the module that reshapes into heads; the projections are relative to `layer`.
    """

    kind: Kind
    layer: str
    block: str
    query: str
    key: str
    value: str
    output: str


@dataclass(frozen=True)
class Architecture:
    """What the project must know about one `config.model_type`.

    Args:
        feed_forward: path of the projection that ends the feed-forward part, from a Transformer
            layer (`model.decoder.layers.2`).
    """

    task: Task
    auto_class: str
    attention: tuple[AttentionPaths, ...]
    feed_forward: str
    head_count: str  # attribute of the block that holds the number of heads
    width: str | None = None  # attribute of the block that holds heads x head size, if any
    token_type_ids: bool = False


def _encoder(prefix: str, token_type_ids: bool) -> Architecture:
    """BERT and its descendants that kept its module names."""
    paths = AttentionPaths(
        kind="encoder_self",
        layer=f"{prefix}.encoder.layer.{{i}}.attention",
        block="self",
        query="self.query",
        key="self.key",
        value="self.value",
        output="output.dense",
    )
    return Architecture(
        task="classification",
        auto_class="AutoModelForSequenceClassification",
        attention=(paths,),
        feed_forward="output.dense",
        head_count="num_attention_heads",
        width="all_head_size",
        token_type_ids=token_type_ids,
    )


def _bart_paths(kind: Kind, stack: str, block: str) -> AttentionPaths:
    return AttentionPaths(
        kind=kind,
        layer=f"model.{stack}.layers.{{i}}",
        block=block,
        query=f"{block}.q_proj",
        key=f"{block}.k_proj",
        value=f"{block}.v_proj",
        output=f"{block}.out_proj",
    )


_BART = Architecture(
    task="translation",
    auto_class="AutoModelForSeq2SeqLM",
    attention=(
        _bart_paths("encoder_self", "encoder", "self_attn"),
        _bart_paths("decoder_self", "decoder", "self_attn"),
        _bart_paths("cross", "decoder", "encoder_attn"),
    ),
    feed_forward="fc2",
    head_count="num_heads",
)

_DISTILBERT = Architecture(
    task="classification",
    auto_class="AutoModelForSequenceClassification",
    attention=(
        AttentionPaths(
            kind="encoder_self",
            layer="distilbert.transformer.layer.{i}",
            block="attention",
            query="attention.q_lin",
            key="attention.k_lin",
            value="attention.v_lin",
            output="attention.out_lin",
        ),
    ),
    feed_forward="ffn.lin2",
    head_count="n_heads",
)

ARCHITECTURES: dict[str, Architecture] = {
    "marian": _BART,
    "bart": _BART,
    "mbart": _BART,
    "bert": _encoder("bert", token_type_ids=True),
    "roberta": _encoder("roberta", token_type_ids=False),
    "distilbert": _DISTILBERT,
    "electra": _encoder("electra", token_type_ids=True),
}


def architecture(model_type: str, where: str = "the checkpoint") -> Architecture:
    """The table's entry for `config.model_type`.

    Raises:
        InputError: the architecture is not supported; the message lists those that are.
    """
    if model_type not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise InputError(
            f"architecture {model_type!r} of {where} is not supported; supported are {supported}"
        )
    return ARCHITECTURES[model_type]


def find_attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """All attention layers of a dense model, by kind and then by layer number.

    Head size is read from the model's configuration-time width and head count, so the model must
    not have been pruned yet; use `compressor.checkpoint` for pruned ones.
    """
    entry = architecture(model.config.model_type)  # type: ignore[union-attr,arg-type]
    modules = dict(model.named_modules())
    layers = []
    for paths in entry.attention:
        index = 0
        while f"{paths.layer.format(i=index)}.{paths.query}" in modules:
            root = paths.layer.format(i=index)
            block = modules[f"{root}.{paths.block}"]
            heads = int(getattr(block, entry.head_count))
            width = modules[f"{root}.{paths.query}"].out_features
            layers.append(
                AttentionLayer(
                    kind=paths.kind,
                    index=index,
                    heads=heads,
                    head_dim=int(width) // heads,
                    block=f"{root}.{paths.block}",
                    query=f"{root}.{paths.query}",
                    key=f"{root}.{paths.key}",
                    value=f"{root}.{paths.value}",
                    output=f"{root}.{paths.output}",
                )
            )
            index += 1
    if not layers:
        raise InputError(
            f"no attention layers found in {type(model).__name__}; load the checkpoint with "
            f"{entry.auto_class} (task {entry.task})"
        )
    return layers
