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
from typing import TYPE_CHECKING, Any, Literal

from compressor.errors import InputError
from compressor.model.sublayers import Kind, Sublayer

if TYPE_CHECKING:
    from torch import nn


CLASSIFIER = "AutoModelForSequenceClassification"
TRANSLATOR = "AutoModelForSeq2SeqLM"
ENCODER = "AutoModel"
EMBEDDING = "embedding"  # the task of encoders without a head


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
        position_bias: an attention adds a bias that depends on relative positions to its scores;
            `own` where each layer has a table of its own, `shared` where the first layer's serves
            all layers of its stack, None where there is none.
        scaled: scores are divided by the square root of the unit width.
        stand_in: what replaces the block when no unit is left, as in `modeling_pruned.STAND_INS`.
    """

    kind: Kind
    layer: str
    block: str
    inputs: Mapping[str, str]
    output: str
    unit_count: str | None
    width: str | None = None
    position_bias: Literal["own", "shared"] | None = None
    scaled: bool = True
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

    Args:
        task: name of the task that its models are for.
        auto_class: the class of transformers that loads them.
        base: path of the module that holds the stacks; empty where it is the model itself.
        sublayers: paths of every kind of sublayer, in the canonical order.
        encoder, decoder: names of their sizes in the configuration; None if there is no decoder.
        width: name in the configuration of the hidden states' size.
        head_width: name of the heads' width, where it is not the width over the number of heads.
        embedding: name of the embedding tables' width, where they have one of their own.
        positions: name of the number of positions; None where positions are relative alone.
        positions_after_padding: positions are counted from the one behind the padding token's id.
        computed_positions: positions are computed instead of learned; or the name in the
            configuration of what says so.
        inputs: names of what the encoder reads.
        head: of a classifier.
        logits_bias: name of the buffer that is added to the logits of a decoder, if there is one.
        feed_forward: `feed_forward_proj` where a configuration does not have it; None where the
            feed-forward parts are always the same.
        decoder_not_deeper: the decoder has at most as many layers as the encoder, for which
            `generate` makes a cache.
        output_scale: name in the configuration of what says that the last hidden states are
            divided by the square root of their width; None where they never are.
        untied: weights that may differ from those that the configuration says they are.
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
    head_width: str | None = None
    embedding: str | None = None
    positions: str | None = "max_position_embeddings"
    positions_after_padding: bool = False
    computed_positions: bool | str = False
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    head: Head | None = None
    logits_bias: str | None = None
    feed_forward: str | None = None
    decoder_not_deeper: bool = False
    output_scale: str | None = None
    untied: frozenset[str] = frozenset()
    unused: tuple[str, ...] = ()
    spare: str | None = None

    @property
    def alone(self) -> Architecture:
        """The entry of its encoder without a head, as models for embeddings are."""
        return replace(
            self, task=EMBEDDING, auto_class=ENCODER, base="", head=None, spare=r"^pooler\."
        )

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The encoder, and the decoder if there is one."""
        return (self.encoder,) if self.decoder is None else (self.encoder, self.decoder)

    def full_paths(self, paths: SublayerPaths) -> dict[str, Any]:
        """`paths` from the model's root on, as `kept_units` in a pruned `config.json` has them."""
        layer = f"{self.base}.{paths.layer}" if self.base else paths.layer
        return asdict(paths) | {"layer": layer, "inputs": list(paths.inputs.values())}

    @property
    def shares_bias(self) -> bool:
        """Whether the first layer's bias of relative positions serves the whole stack."""
        return any(paths.position_bias == "shared" for paths in self.sublayers)

    @property
    def is_gated(self) -> bool:
        """Whether its feed-forward parts multiply by a second projection up, the gate."""
        return any("gate" in paths.inputs for paths in self.sublayers)

    def with_feed_forward(self, setting: str | None) -> Architecture:
        """The entry for models with this `feed_forward_proj`, such as `gated-gelu`; None: usual."""
        if not (setting or self.feed_forward or "").startswith("gated"):
            return self
        return replace(self, sublayers=tuple(map(_gated, self.sublayers)))

    def most_positions(self, config: Any) -> int | None:
        """The most tokens that the model has positions for; None where there is no limit.

        Args:
            config: of the model.
        """
        if self.positions is None:
            return None
        behind = int(config.pad_token_id) + 1 if self.positions_after_padding else 0
        return int(getattr(config, self.positions)) - behind

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


def _gated(paths: SublayerPaths) -> SublayerPaths:
    if "up" not in paths.inputs:
        return paths
    up = paths.inputs["up"]
    return replace(paths, inputs={"gate": f"{up}_0", "up": f"{up}_1"})


def _bart_attention(kind: Kind, layer: str, block: str) -> SublayerPaths:
    return SublayerPaths(
        kind=kind,
        layer=layer,
        block=block,
        inputs={"query": f"{block}.q_proj", "key": f"{block}.k_proj", "value": f"{block}.v_proj"},
        output=f"{block}.out_proj",
        unit_count="num_heads",
    )


def _t5_attention(kind: Kind, layer: str, block: str = "SelfAttention") -> SublayerPaths:
    return SublayerPaths(
        kind=kind,
        layer=layer,
        block=block,
        inputs={"query": f"{block}.q", "key": f"{block}.k", "value": f"{block}.v"},
        output=f"{block}.o",
        unit_count="n_heads",
        width="inner_dim",
        # Cross-attention has no positions, but there too each layer passes zeros on to the next.
        position_bias="shared",
        scaled=False,
        stand_in="shared_bias",
    )


def _t5_feed_forward(kind: Kind, layer: str) -> SublayerPaths:
    block = "DenseReluDense"
    return _feed_forward(kind, layer, f"{block}.wi", f"{block}.wo", block=block)


def _own_bias(paths: SublayerPaths) -> SublayerPaths:
    """As in UMT5."""
    if paths.position_bias is None:
        return paths
    bias: Literal["own"] | None = None if paths.kind == "cross" else "own"
    return replace(paths, position_bias=bias, stand_in="attention")


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

T5 = Architecture(
    task="translation",
    auto_class=TRANSLATOR,
    base="",
    sublayers=(
        _t5_attention("encoder_self", "encoder.block.{i}.layer.0"),
        _t5_attention("decoder_self", "decoder.block.{i}.layer.0"),
        _t5_attention("cross", "decoder.block.{i}.layer.1", "EncDecAttention"),
        _t5_feed_forward("encoder_ffn", "encoder.block.{i}.layer.1"),
        _t5_feed_forward("decoder_ffn", "decoder.block.{i}.layer.2"),
    ),
    encoder=Stack("num_layers", "num_heads", "d_ff"),
    decoder=Stack("num_decoder_layers", "num_heads", "d_ff"),
    width="d_model",
    head_width="d_kv",
    positions=None,
    feed_forward="relu",
    decoder_not_deeper=True,
    output_scale="scale_decoder_outputs",
    untied=frozenset({"lm_head.weight"}),
    unused=(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.",),
)

UMT5 = replace(
    T5,
    sublayers=tuple(map(_own_bias, T5.sublayers)),
    feed_forward="gated-gelu",
    output_scale="tie_word_embeddings",
)

ARCHITECTURES: dict[str, Architecture] = {
    "marian": replace(BART, computed_positions=True),
    "bart": BART,
    "mbart": BART,
    "bert": BERT,
    "roberta": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "t5": T5,
    "mt5": replace(T5, feed_forward="gated-gelu", output_scale=None),
    "umt5": UMT5,
    "pegasus": replace(BART, computed_positions=True),
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


def require_depth(entry: Architecture, encoder: int, decoder: int, where: str) -> None:
    """Check that the library can generate with so many layers of each stack.

    Raises:
        InputError: it cannot.
    """
    if entry.decoder_not_deeper and decoder > encoder:
        raise InputError(
            f"{where} has {encoder} layers in the encoder and {decoder} in the decoder, and "
            "`generate` of transformers makes a cache for as many as the encoder has; keep at "
            "least as many layers in the encoder",
            id="decoder-deeper-than-encoder",
        )


def architecture_of(model: Any) -> Architecture:
    """The entry for a model of transformers, with its usual head or an encoder without one."""
    config = model.config
    entry = architecture(config.model_type)
    entry = entry.with_feed_forward(getattr(config, "feed_forward_proj", None))
    return entry if entry.decoder or hasattr(model, entry.base) else entry.alone


def _biased_by(paths: SublayerPaths, root: str, index: int) -> str | None:
    """Path of the attention whose table of relative positions one's bias is from."""
    if paths.position_bias is None or paths.kind == "cross":
        return None
    layer = root.format(i=0 if paths.position_bias == "shared" else index)
    return f"{layer}.{paths.block}"


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
