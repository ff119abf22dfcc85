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
from compressor.model.sublayers import Kind, Sublayer

if TYPE_CHECKING:
    from torch import nn


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
        inputs: role -> path of each projection whose rows belong to units.
        output: the projection whose columns belong to units.
        unit_count: attribute of the block that holds the number of units; None if it has none.
        unit_width: attribute of the block that holds the columns of a unit, where none holds their
            number; without either, each column of the output projection is a unit of its own.
        width: attribute of the block that holds units x unit width, if it has one.
        stand_in: what replaces the block when no unit is left, as in `modeling_pruned.STAND_INS`.
        shared_bias: position among the block's arguments of a bias that is computed once for all
            layers, [batch, heads of the dense model, queries, keys]: a block takes its own heads.
        parts: how many projections each of the inputs holds, one after the other: 3 where query,
            key and value are one, 2 where a feed-forward part has its gate behind what it gates.
        optional: further inputs, which some configurations have.
    """

    kind: Kind
    layer: str
    block: str
    inputs: Mapping[str, str]
    output: str
    unit_count: str | None
    width: str | None = None
    stand_in: str = "attention"
    shared_bias: int | None = None
    unit_width: str | None = None
    parts: int = 1
    optional: Mapping[str, str] = field(default_factory=dict)


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
        refuse: from a configuration, why its models cannot be pruned; None if they can.
        layers_return: what a Transformer layer returns: a `tensor`, or a `tuple` that begins with
            it.
        scores: how an encoder's attention scores are made: of `products` of queries and keys alone,
            with a `bias` that its layers share, of `rotated` queries and keys (RoPE), or with
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
    embedding: str | None = None
    positions_after_padding: bool = False
    computed_positions: bool | str = False
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    head: Head | None = None
    logits_bias: str | None = None
    unused: tuple[str, ...] = ()
    spare: str | None = None
    refuse: Callable[[Any], str | None] = lambda config: None
    layers_return: Literal["tensor", "tuple"] = "tensor"
    scores: Literal["products", "bias", "rotated", "disentangled"] = "products"
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
        return asdict(paths) | {"layer": layer, "inputs": inputs, "optional": optional}

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
            shared_bias=2,
        ),
        BERT.sublayers[1],
    ),
    unused=(r"^lm_head\.", r"^(mpnet\.)?pooler\.dense\."),
    refuse=_refuse_mpnet,
    layers_return="tuple",
    scores="bias",
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
            inputs={"query_key_value": "attn.Wqkv"},
            output="attn.Wo",
            unit_count=None,
            unit_width="head_dim",
            parts=3,
        ),
        replace(_feed_forward("encoder_ffn", "layers.{i}", "mlp.Wi", "mlp.Wo"), parts=2),
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
                    parts=paths.parts,
                )
            )
    if not sublayers:
        raise InputError(
            f"{type(model).__name__} has none of the layers that are pruned; load the checkpoint "
            f"with {entry.auto_class} (task {entry.task})",
            id="sublayers-missing",
        )
    return sublayers
