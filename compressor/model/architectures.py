"""The supported architectures: one entry each, with all that the project must know about one.

An entry is data about a `config.model_type` of transformers; a relative of an architecture is its
entry with a few fields replaced. To add one, add an entry to `ARCHITECTURES` and a tiny
configuration to `tests/helpers/tiny.py`: to `BUILDERS`, and every test of scoring, surgery, saving,
export and generation runs on it, or to `RELATIVES`, for one test of everything.

To add a kind of sublayer, add its name to `Kind` and its `SublayerPaths` to the architectures that
have it. Which rows of an input projection belong to a unit is `modeling_pruned.unit_columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from compressor.errors import InputError
from compressor.model.sublayers import Kind, Sublayer, parts_of

if TYPE_CHECKING:
    from torch import nn


PositionBias = Literal["every_layer", "first_layer", "stack"]
CLASSIFIER = "AutoModelForSequenceClassification"
TOKEN_CLASSIFIER = "AutoModelForTokenClassification"
READER = "AutoModelForQuestionAnswering"
TRANSLATOR = "AutoModelForSeq2SeqLM"
ENCODER = "AutoModel"
EMBEDDING = "embedding"  # the task of encoders without a head
REGRESSION = "regression"  # of classifiers with one output
MULTILABEL = "multilabel"  # of those whose problem_type says so
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
        inputs: role -> path of each projection whose rows belong to units. Where one holds several,
            one after the other, their roles are joined by `+`: `query+key+value`. A feed-forward
            part has a gate where one is a `gate`: what passes the activation and multiplies `up`.
        output: the projection whose columns belong to units.
        unit_count: attribute of the block that holds the number of units; None if it has none.
        unit_width: attribute of the block that holds the columns of a unit, where none holds their
            number; without either, each column of the output projection is a unit of its own.
        width: attribute of the block that holds units x unit width, if it has one.
        position_bias: where the table of a bias is that is added to an attention's scores by the
            distance of two tokens: in `every_layer`; in the `first_layer`, and each hands the bias
            on to the next; or in the `stack`, which gives the bias to all as their argument
            `position_bias`. None where there is no such bias.
        scaled: scores are divided by the square root of the unit width.
        stand_in: what replaces the block when no unit is left, as in `modeling_pruned.STAND_INS`.
        optional: further inputs, which some configurations have.
    """

    kind: Kind
    layer: str
    block: str
    inputs: Mapping[str, str]
    output: str
    unit_count: str | None
    width: str | None = None
    position_bias: PositionBias | None = None
    scaled: bool = True
    stand_in: str = "attention"
    unit_width: str | None = None
    optional: Mapping[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> int:
        """How many projections each of the inputs holds, one after the other."""
        return len(parts_of(next(iter(self.inputs))))


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
        head_width: name of the heads' width, where it is not the width over the number of heads.
        embedding: name of the embedding tables' width, where they have one of their own.
        positions: name of the number of positions; None where positions are relative alone.
        positions_after_padding: positions are counted from the one behind the padding token's id.
        computed_positions: positions are computed instead of learned; or the name in the
            configuration of what says so.
        inputs: names of what the encoder reads.
        head: of a classifier of texts.
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
        refuse: from a configuration, why its models cannot be pruned; None if they can.
        layers_return: what a Transformer layer returns: a `tensor`, or a `tuple` that begins with
            it.
        scores: how an encoder's attention scores are made, to which the `position_bias` of its
            sublayers is added: of `products` of queries and keys, of `rotated` ones (RoPE), or with
            products with positions, too (`disentangled`).
        position_products: from a configuration, how many products with positions there are.
        first_stays: from a configuration, whether the first layer cannot be left out, since it is
            another than the ones behind it.
        of_layers: names in the configuration of lists with an entry for every layer.
        least_types: the fewest token types that it can have.
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
    refuse: Callable[[Any], str | None] = lambda config: None
    layers_return: Literal["tensor", "tuple"] = "tensor"
    scores: Literal["products", "rotated", "disentangled"] = "products"
    position_products: Callable[[Mapping[str, Any]], int] = lambda config: 0
    first_stays: Callable[[Any], bool] = lambda config: False
    of_layers: tuple[str, ...] = ()
    least_types: int = 1

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
        inputs, optional = (list(x.values()) for x in (paths.inputs, paths.optional))
        changed = {"layer": layer, "inputs": inputs, "optional": optional, "parts": paths.parts}
        return asdict(paths) | changed

    @property
    def position_bias(self) -> PositionBias | None:
        """Where its attention has the table of a bias by distances, as in `SublayerPaths`."""
        return next((x.position_bias for x in self.sublayers if x.position_bias), None)

    @property
    def plain_scores(self) -> bool:
        """Whether attention scores are products of queries and keys alone."""
        return self.scores == "products" and self.position_bias is None

    @property
    def is_gated(self) -> bool:
        """Whether its feed-forward parts have a gate, a second projection up."""
        return any("gate" in parts_of(role) for x in self.sublayers for role in x.inputs)

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
        position_bias="first_layer",
        scaled=False,
        stand_in="bias_to_hand_on",
    )


def _t5_feed_forward(kind: Kind, layer: str) -> SublayerPaths:
    block = "DenseReluDense"
    return _feed_forward(kind, layer, f"{block}.wi", f"{block}.wo", block=block)


def _own_bias(paths: SublayerPaths) -> SublayerPaths:
    """As in UMT5."""
    if paths.position_bias is None:
        return paths
    bias: PositionBias | None = None if paths.kind == "cross" else "every_layer"
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


def _refuse_mpnet(config: Any) -> str | None:
    if config.pad_token_id == 1:
        return None
    return f"pad_token_id is {config.pad_token_id}, and MPNet counts positions from token 1 on"


MPNET = replace(
    ROBERTA,
    base="mpnet",
    sublayers=(
        SublayerPaths(
            kind="encoder_self",
            layer="encoder.layer.{i}.attention",
            block="attn",
            inputs={"query": "attn.q", "key": "attn.k", "value": "attn.v"},
            output="attn.o",
            unit_count="num_attention_heads",
            width="all_head_size",
            position_bias="stack",
        ),
        BERT.sublayers[1],
    ),
    unused=(r"^lm_head\.", r"^(mpnet\.)?pooler\.dense\."),
    refuse=_refuse_mpnet,
    layers_return="tuple",
)


def _refuse_modernbert(config: Any) -> str | None:
    kinds = {kind: x["rope_type"] for kind, x in config.rope_parameters.items() if x is not None}
    if set(kinds.values()) == {"default"}:
        return None
    return f"its rotary positions are scaled ({kinds})"


MODERNBERT = Architecture(
    task="classification",
    auto_class=CLASSIFIER,
    base="model",
    sublayers=(
        SublayerPaths(
            kind="encoder_self",
            layer="layers.{i}",
            block="attn",
            inputs={"query+key+value": "attn.Wqkv"},
            output="attn.Wo",
            unit_count=None,
            unit_width="head_dim",
        ),
        replace(
            _feed_forward("encoder_ffn", "layers.{i}", "mlp.Wi", "mlp.Wo"),
            inputs={"gate+up": "mlp.Wi"},
        ),
    ),
    head=Head("head.dense", "gelu", "classifier"),
    unused=(r"^decoder\.", r"^head\.(dense|norm)\."),
    refuse=_refuse_modernbert,
    scores="rotated",
    first_stays=lambda config: True,  # the normalization before its attention is left out
    of_layers=("layer_types",),
)


def _refuse_deberta(config: Any) -> str | None:
    if not config.type_vocab_size:
        return None
    return f"type_vocab_size is {config.type_vocab_size}, and graphs are made without token types"


def _deberta_products(config: Mapping[str, Any]) -> int:
    kinds = config.get("pos_att_type") or ()
    return sum(kind in kinds for kind in ("c2p", "p2c")) if config.get("relative_attention") else 0


DEBERTA = replace(
    BERT,
    base="deberta",
    sublayers=(
        SublayerPaths(
            kind="encoder_self",
            layer="encoder.layer.{i}.attention",
            block="self",
            inputs={
                "query": "self.query_proj",
                "key": "self.key_proj",
                "value": "self.value_proj",
            },
            optional={
                "position_key": "self.pos_key_proj",
                "position_query": "self.pos_query_proj",
            },
            output="output.dense",
            unit_count="num_attention_heads",
            width="all_head_size",
        ),
        BERT.sublayers[1],
    ),
    embedding="embedding_size",
    inputs=("input_ids", "attention_mask"),
    head=Head("pooler.dense", "gelu", "classifier"),
    unused=(r"^(lm_predictions|mask_predictions|cls)\.", r"position_embeddings"),
    refuse=_refuse_deberta,
    layers_return="tuple",
    scores="disentangled",
    position_products=_deberta_products,
    # A convolution of the embeddings is added behind it.
    first_stays=lambda config: getattr(config, "conv_kernel_size", 0) > 0,
    least_types=0,
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
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "mpnet": MPNET,
    "modernbert": MODERNBERT,
    "deberta-v2": DEBERTA,
    "t5": T5,
    "mt5": replace(T5, feed_forward="gated-gelu", output_scale=None),
    "umt5": UMT5,
    "pegasus": replace(BART, computed_positions=True),
}

# Why not, where it is more than that nobody has added it.
_REASONS = {
    "albert": ", since all of its layers share one set of weights, so that a unit cannot leave one "
    "layer alone",
}


def architecture(model_type: str, where: str = "the checkpoint") -> Architecture:
    """The entry for `config.model_type`.

    Raises:
        InputError: the architecture is not supported; the message lists those that are.
    """
    if model_type not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        reason = _REASONS.get(model_type, "")
        raise InputError(
            f"architecture {model_type!r} of {where} is not supported{reason}; supported are "
            f"{supported}",
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
    """The entry for a model of transformers."""
    config = model.config
    entry = architecture(config.model_type)
    entry = entry.with_feed_forward(getattr(config, "feed_forward_proj", None))
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


def _biased_by(paths: SublayerPaths, root: str, index: int) -> str | None:
    """Path of the attention whose table of relative positions one's bias is from."""
    if paths.position_bias in (None, "stack") or paths.kind == "cross":
        return None
    layer = root.format(i=0 if paths.position_bias == "first_layer" else index)
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
