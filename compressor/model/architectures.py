"""The supported architectures: one entry each, with all that the project must know about one.

An entry is data about a `config.model_type` of transformers; a relative of an architecture is its
entry with a few fields replaced. To add one, add an entry to `ARCHITECTURES` and a tiny
configuration to `tests/helpers/tiny.py`: every test of scoring, surgery, saving, export and
generation then runs on it.

To add a kind of sublayer, add its name to `Kind` and its `SublayerPaths` to the architectures that
have it. Which rows of an input projection belong to a unit is `modeling_pruned.unit_columns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.model.sublayers import Kind, Sublayer

if TYPE_CHECKING:
    from torch import nn


CLASSIFIER = "AutoModelForSequenceClassification"
TOKEN_CLASSIFIER = "AutoModelForTokenClassification"
READER = "AutoModelForQuestionAnswering"
TRANSLATOR = "AutoModelForSeq2SeqLM"
ENCODER = "AutoModel"
EMBEDDING = "embedding"  # the task of encoders without a head
# Class of transformers that opens models of an encoder architecture -> what they are usually for.
ENCODER_TASKS = {
    CLASSIFIER: "classification",
    TOKEN_CLASSIFIER: "token-classification",
    READER: "question-answering",
    ENCODER: EMBEDDING,
}


@dataclass(frozen=True)
class SublayerPaths:
    """Paths of one kind of sublayer; `{i}` stands for the layer number.

    Args:
        layer: the module that holds the sublayer, from the architecture's `base` on; all other
            paths are relative to it.
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
class Stack:
    """The names in `config.json` of an encoder's or decoder's sizes; the defaults are BERT's."""

    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    neurons: str = "intermediate_size"


@dataclass(frozen=True)
class Head:
    """How a classifier gets logits from the first token: a linear layer, an activation, another.

    Args:
        dense, output: paths of the linear layers, from the model's root.
        activation: `tanh`, `gelu` or `relu`.
    """

    dense: str
    activation: str
    output: str


@dataclass(frozen=True)
class Architecture:
    """What the project must know about one `config.model_type`.

    The entry of an encoder in the table is that of its classifiers of texts; `for_class` makes
    those of its other models.

    Args:
        task: name of the task that its models are usually for.
        auto_class: the class of transformers that loads them.
        base: path of the module that holds the stacks; empty where it is the model itself.
        sublayers: paths of every kind of sublayer, in the canonical order.
        encoder, decoder: names of their sizes in the configuration; None if there is no decoder.
        width: name in the configuration of the hidden states' size.
        embedding: name of the embedding tables' width, where they have one of their own.
        positions_after_padding: positions are counted from the one behind the padding token's id.
        computed_positions: positions are computed instead of learned; or the name in the
            configuration of what says so.
        inputs: names of what the encoder reads.
        head: of a classifier of texts.
        logits_bias: name of the buffer that is added to the logits of a decoder, if there is one.
        unused: patterns of weights that checkpoints may hold beside those of the class: heads of
            other tasks, which change nothing that the model says. All others must be used.
        spare: pattern of weights that the class has and nothing reads: checkpoints may lack them.
    """

    task: str
    auto_class: str
    base: str
    sublayers: tuple[SublayerPaths, ...]
    encoder: Stack = Stack()
    decoder: Stack | None = None
    width: str = "hidden_size"
    embedding: str | None = None
    positions_after_padding: bool = False
    computed_positions: bool | str = False
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    head: Head | None = None
    logits_bias: str | None = None
    unused: tuple[str, ...] = ()
    spare: str | None = None

    def for_class(self, auto_class: str) -> Architecture:
        """The entry of the same encoder with another head, or without one.

        Args:
            auto_class: in `ENCODER_TASKS`; others, and all of encoder-decoders, change nothing.
        """
        if auto_class == self.auto_class or self.decoder or auto_class not in ENCODER_TASKS:
            return self
        task = ENCODER_TASKS[auto_class]
        entry = replace(self, task=task, auto_class=auto_class, head=None)
        if auto_class == ENCODER:
            return replace(entry, base="", spare=r"^pooler\.")
        return replace(entry, unused=(*self.unused, rf"^({self.base}\.)?pooler\."))

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The encoder, and the decoder if there is one."""
        return (self.encoder,) if self.decoder is None else (self.encoder, self.decoder)

    def full_paths(self, paths: SublayerPaths) -> dict[str, Any]:
        """`paths` from the model's root on, as `kept_units` in a pruned `config.json` has them."""
        layer = f"{self.base}.{paths.layer}" if self.base else paths.layer
        return asdict(paths) | {"layer": layer, "inputs": list(paths.inputs.values())}

    def positions(self, config: Any) -> int:
        """The most tokens that the model has positions for.

        Args:
            config: of the model.
        """
        behind = int(config.pad_token_id) + 1 if self.positions_after_padding else 0
        return int(config.max_position_embeddings) - behind

    def computes_positions(self, config: Any) -> bool:
        """Whether the table of positions is computed, so that no checkpoint stores it."""
        name = self.computed_positions
        return bool(getattr(config, name, False)) if isinstance(name, str) else name


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


def _bart_attention(kind: Kind, layer: str, block: str) -> SublayerPaths:
    return SublayerPaths(
        kind=kind,
        layer=layer,
        block=block,
        inputs={"query": f"{block}.q_proj", "key": f"{block}.k_proj", "value": f"{block}.v_proj"},
        output=f"{block}.out_proj",
        unit_count="num_heads",
    )


BERT = Architecture(
    task="classification",
    auto_class=CLASSIFIER,
    base="bert",
    sublayers=(
        SublayerPaths(
            kind="encoder_self",
            layer="encoder.layer.{i}.attention",
            block="self",
            inputs={"query": "self.query", "key": "self.key", "value": "self.value"},
            output="output.dense",
            unit_count="num_attention_heads",
            width="all_head_size",
        ),
        _feed_forward(
            "encoder_ffn",
            "encoder.layer.{i}",
            "intermediate.dense",
            "output.dense",
            block="intermediate",
        ),
    ),
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    head=Head("bert.pooler.dense", "tanh", "classifier"),
    unused=(r"^cls\.",),
)

ROBERTA = replace(
    BERT,
    base="roberta",
    positions_after_padding=True,
    inputs=("input_ids", "attention_mask"),
    head=Head("classifier.dense", "tanh", "classifier.out_proj"),
    unused=(r"^lm_head\.", r"^(roberta\.)?pooler\.dense\."),
)

ELECTRA = replace(
    BERT,
    base="electra",
    embedding="embedding_size",
    head=Head("classifier.dense", "gelu", "classifier.out_proj"),
    unused=(r"^(discriminator_predictions|generator_predictions|generator_lm_head)\.",),
)

DISTILBERT = Architecture(
    task="classification",
    auto_class=CLASSIFIER,
    base="distilbert",
    sublayers=(
        SublayerPaths(
            kind="encoder_self",
            layer="transformer.layer.{i}",
            block="attention",
            inputs={
                "query": "attention.q_lin",
                "key": "attention.k_lin",
                "value": "attention.v_lin",
            },
            output="attention.out_lin",
            unit_count="n_heads",
        ),
        _feed_forward("encoder_ffn", "transformer.layer.{i}", "ffn.lin1", "ffn.lin2"),
    ),
    encoder=Stack("n_layers", "n_heads", "hidden_dim"),
    width="dim",
    computed_positions="sinusoidal_pos_embds",
    head=Head("pre_classifier", "relu", "classifier"),
    unused=(r"^vocab_(transform|layer_norm|projector)\.",),
)

BART = Architecture(
    task="translation",
    auto_class=TRANSLATOR,
    base="model",
    sublayers=(
        _bart_attention("encoder_self", "encoder.layers.{i}", "self_attn"),
        _bart_attention("decoder_self", "decoder.layers.{i}", "self_attn"),
        _bart_attention("cross", "decoder.layers.{i}", "encoder_attn"),
        _feed_forward("encoder_ffn", "encoder.layers.{i}", "fc1", "fc2"),
        _feed_forward("decoder_ffn", "decoder.layers.{i}", "fc1", "fc2"),
    ),
    encoder=Stack("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    decoder=Stack("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
    width="d_model",
    logits_bias="final_logits_bias",
)

ARCHITECTURES: dict[str, Architecture] = {
    "marian": replace(BART, computed_positions=True),
    "bart": BART,
    "mbart": BART,
    "bert": BERT,
    "roberta": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
}


def architecture(model_type: str, where: str = "the checkpoint") -> Architecture:
    """The entry for `config.model_type`.

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


def architecture_of(model: Any) -> Architecture:
    """The entry for a model of transformers."""
    entry = architecture(model.config.model_type)
    if not hasattr(model, entry.base):
        return entry.for_class(ENCODER)
    return entry.for_class(class_with_head(type(model).__name__) or entry.auto_class)


def class_with_head(name: str) -> str | None:
    """The class that opens `BertForTokenClassification`, as `architectures` names it.

    Returns:
        None where the name tells no head in `ENCODER_TASKS`: of an encoder alone, or one that was
        only pretrained.
    """
    endings = {x: x.removeprefix(ENCODER) for x in ENCODER_TASKS if x != ENCODER}
    return next((x for x, ending in endings.items() if name.endswith(ending)), None)


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
            sublayers.append(
                Sublayer(
                    kind=paths.kind,
                    index=index,
                    units=placed.units,
                    unit_width=placed.unit_width,
                    block=placed.block,
                    inputs=dict(zip(paths.inputs, placed.inputs, strict=True)),
                    output=placed.output,
                )
            )
    if not sublayers:
        raise InputError(
            f"{type(model).__name__} has none of the layers that are pruned; load the checkpoint "
            f"with {entry.auto_class} (task {entry.task})",
            id="sublayers-missing",
        )
    return sublayers
