"""The form of an entry for an architecture; the entries are in `architectures.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from compressor.errors import InputError
from compressor.model.sentence_settings import SentenceSettings, is_cross_encoder
from compressor.model.sublayers import Kind, TokenRead, parts_of

if TYPE_CHECKING:
    from torch import nn

PositionBias = Literal["every_layer", "first_layer", "stack"]
# The most that a configuration may ask for: several times what the largest models of the supported
# architectures have. docs/checkpoints.md lists them.
LAYERS = 1024
HEADS = 1024
WIDTH = 65_536
NEURONS = 1_048_576  # of a layer
VOCABULARY = 16_777_216
POSITIONS = 65_536
TYPES = 65_536  # of tokens
LABELS = 65_536
LEAST_TOKENS = 4  # of a text: the special tokens and something between them
DISTANCES = 4096  # of relative positions
COMPUTED_POSITIONS = 8_388_608  # numbers in a table of sinusoidal positions, which are computed


@dataclass(frozen=True)
class Head:
    """A class of transformers, and the task that its models are usually for.

    A subclass says what models of the class need beyond what transformers gives them.

    Args:
        auto_class: the class of transformers that opens such models.
        task: name of the task.
    """

    auto_class: str
    task: str

    @property
    def ending(self) -> str:
        """The end of its models' class names; empty for an encoder without a head."""
        return self.auto_class.removeprefix("AutoModel")

    def usual_task(self, config: Any) -> str:
        """The task of a model with this configuration, where none is named."""
        return self.task

    def token_read(self, model: nn.Module) -> TokenRead | None:
        """The token whose last state alone its logits depend on; None: on those of all tokens."""
        return None

    def complete(
        self, model: nn.Module, source: Path, settings: SentenceSettings | None, allow_pickle: bool
    ) -> None:
        """Add to a model loaded from a directory what transformers leaves out, in place.

        Args:
            model: of the head's class.
            source: the directory.
            settings: of sentence-transformers, if it has some.
            allow_pickle: whether weights may be read from pickles.

        Raises:
            InputError: files that are needed are missing or malformed.
        """


class _Classifier(Head):
    @override
    def token_read(self, model: nn.Module) -> TokenRead | None:
        # ModernBERT's may take the mean of all tokens.
        return "first" if getattr(model.config, "classifier_pooling", "cls") == "cls" else None

    @override
    def usual_task(self, config: Any) -> str:
        if config.problem_type == "multi_label_classification":
            return "multilabel"
        if config.num_labels != 1:
            return self.task
        return "reranking" if is_cross_encoder(config) else "regression"


class _Reader(Head):  # answers questions by a part of a text
    @override
    def complete(self, model: nn.Module, *source: Any) -> None:
        from compressor.model.modes import add_span_logits

        add_span_logits(model)


class _Encoder(Head):  # without one in transformers; that of sentence-transformers is added
    @override
    def token_read(self, model: nn.Module) -> TokenRead | None:
        from compressor.model.sentence_head import HEAD, head_of

        return head_of(model).token_read if hasattr(model, HEAD) else None

    @override
    def complete(self, model: nn.Module, *source: Any) -> None:
        from compressor.model.sentence_head import add_head

        add_head(model, *source)


CLASSIFIER = _Classifier("AutoModelForSequenceClassification", "classification")
ENCODER = _Encoder("AutoModel", "embedding")
TRANSLATOR = Head("AutoModelForSeq2SeqLM", "translation")
# Of encoders, by the class.
ENCODER_HEADS: dict[str, Head] = {
    head.auto_class: head
    for head in (
        CLASSIFIER,
        Head("AutoModelForTokenClassification", "token-classification"),
        _Reader("AutoModelForQuestionAnswering", "question-answering"),
        ENCODER,
    )
}


def head_in(name: str) -> Head | None:
    """The head of a class such as `BertForTokenClassification`; None without one of a task here."""
    heads = ENCODER_HEADS.values()
    return next((x for x in heads if x.ending and name.endswith(x.ending)), None)


@dataclass(frozen=True)
class SublayerPaths:
    """Paths of one kind of sublayer, from its `layer` on; see `Sublayer`.

    Args:
        kind: of the sublayer.
        layer: from the architecture's `base` on, with `{i}` for the layer's number.
        block: the module that is replaced when no unit is left; an attention's splits its input
            into heads.
        inputs: role -> path of each projection whose rows belong to units. Where one holds several,
            one after the other, their roles are joined: `query+key+value`.
        output: the projection whose columns belong to units.
        unit_count: attribute of the block for the number of units.
        width: attribute of the block for the columns of all units. Without `unit_count` and
            `unit_width`, each column of the output projection is a unit of its own.
        position_bias: where the table of the bias by distance is that is added to attention scores:
            in each layer; in the first, and each hands the bias on; in the stack, which gives it as
            `position_bias`.
        scaled: whether scores are divided by the square root of the unit width.
        stand_in: what replaces the block when no unit is left: `feed_forward`, `attention`, or
            `bias_to_hand_on`, which still makes the bias for other layers.
        unit_width: attribute of the block for the columns of a unit.
        optional: inputs of some configurations.
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


@dataclass(frozen=True)
class Stack:
    """The names in `config.json` of an encoder's or decoder's sizes; the defaults are BERT's."""

    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    neurons: str = "intermediate_size"


@dataclass(frozen=True)
class DecoderStack(Stack):
    """A decoder's sizes, and how its models differ from BART's."""

    logits_bias: str | None = None  # the buffer that is added to the logits
    # The setting by which the last hidden states are divided by the square root of their width.
    output_scale: str | None = None
    shifts_language: bool = False  # the last label, the target language, starts the decoder's input
    not_deeper: bool = False  # `generate` makes a cache for as many layers as the encoder has


@dataclass(frozen=True)
class Architecture:
    """Facts about one `config.model_type`; the defaults are BERT's.

    The entry of an encoder in the table is that of its classifiers of texts; `for_class` makes
    those of its other models. Sizes are the names of settings in `config.json`.
    """

    base: str  # path of the module that holds the stacks; empty where it is the model itself
    sublayers: tuple[SublayerPaths, ...]
    encoder: Stack = Stack()
    decoder: DecoderStack | None = None
    width: str = "hidden_size"
    head_width: str | None = None  # where it is not the width over the number of heads
    embedding_width: str | None = None  # where it is not the width
    least_types: int = 1
    positions: str | None = "max_position_embeddings"  # None where they are relative alone
    positions_after_padding: bool = False  # counted from the one behind the padding token's id
    computed_positions: bool | str = False  # instead of learned; or the name of the setting for it
    # Patterns of weights that checkpoints may hold beside those of the class: heads of other tasks.
    unused_weights: tuple[str, ...] = ()
    optional_weights: str | None = None  # of weights that nothing reads: they may be missing
    untied_weights: frozenset[str] = frozenset()  # whatever the configuration ties them to
    layers_return: Literal["tensor", "tuple"] = "tensor"
    first_layer_stays: Callable[[Any], bool] = lambda config: False  # it cannot be dropped
    layer_lists: tuple[str, ...] = ()  # settings with an entry for every layer
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    head: Head = CLASSIFIER
    feed_forward: str | None = None  # `feed_forward_proj` where a configuration does not have it
    refuse: Callable[[Any], str | None] = lambda config: None  # why models cannot be pruned
    # How an encoder's attention scores are made: by products of queries and keys, also with a bias
    # that all layers are given, of rotated ones (RoPE), or with products with positions too.
    scores: Literal["products", "stack_bias", "rotated", "disentangled"] = "products"
    position_products: Callable[[Mapping[str, Any]], int] = lambda config: 0  # their number
    # From an encoder's layer on, what normalizes its input before the attention, if that is so.
    attention_norm: str = ""
    # Whether what follows the last layer reads all tokens, whatever the head reads.
    needs_all_tokens: Callable[[Any], bool] = lambda config: False

    @property
    def task(self) -> str:
        """Name of the task that its models are usually for."""
        return self.head.task

    @property
    def auto_class(self) -> str:
        """The class of transformers that opens its models."""
        return self.head.auto_class

    @property
    def logits_bias(self) -> str | None:
        """The buffer that is added to a decoder's logits; None without one."""
        return self.decoder.logits_bias if self.decoder else None

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The encoder, and the decoder if there is one."""
        return (self.encoder,) if self.decoder is None else (self.encoder, self.decoder)

    @property
    def position_bias(self) -> PositionBias | None:
        """The place of the table of the attention's bias by distance; None without one."""
        return next((x.position_bias for x in self.sublayers if x.position_bias), None)

    @property
    def plain_scores(self) -> bool:
        """Whether attention scores are products of queries and keys alone."""
        return self.scores == "products" and self.position_bias is None

    @property
    def is_gated(self) -> bool:
        """Whether feed-forward parts have a gate."""
        return any("gate" in parts_of(role) for x in self.sublayers for role in x.inputs)

    def for_class(self, auto_class: str) -> Architecture:
        """The entry of the same encoder with another head.

        Args:
            auto_class: in `ENCODER_HEADS`; others, and all of encoder-decoders, change nothing.
        """
        if auto_class == self.auto_class or self.decoder or auto_class not in ENCODER_HEADS:
            return self
        head = ENCODER_HEADS[auto_class]
        if not head.ending:
            return replace(self, head=head, base="", optional_weights=r"^pooler\.")
        unused = (*self.unused_weights, rf"^({self.base}\.)?pooler\.")
        return replace(self, head=head, unused_weights=unused)

    def with_feed_forward(self, setting: str | None) -> Architecture:
        """The entry for models with this `feed_forward_proj`, such as `gated-gelu`; None: usual."""
        if not (setting or self.feed_forward or "").startswith("gated"):
            return self
        sublayers = []
        for paths in self.sublayers:
            up = paths.inputs.get("up")
            inputs = paths.inputs if up is None else {"gate": f"{up}_0", "up": f"{up}_1"}
            sublayers.append(replace(paths, inputs=inputs))
        return replace(self, sublayers=tuple(sublayers))

    def full_paths(self, paths: SublayerPaths) -> dict[str, Any]:
        """`paths` from the model's root on, as `kept_units` in a pruned `config.json` has them."""
        return asdict(paths) | {
            "layer": f"{self.base}.{paths.layer}" if self.base else paths.layer,
            "inputs": list(paths.inputs.values()),
            "optional": list(paths.optional.values()),
            "parts": len(parts_of(next(iter(paths.inputs)))),
        }

    def most_positions(self, config: Any) -> int | None:
        """The most tokens that a model has positions for; None where there is no limit."""
        if self.positions is None:
            return None
        offset = int(config.pad_token_id) + 1 if self.positions_after_padding else 0
        return int(getattr(config, self.positions)) - offset

    def token_types(self, model: nn.Module) -> int | None:
        """How many types of tokens its graphs tell apart; None if the model has no types."""
        modules = model.named_modules()
        tables: list[Any] = [x for name, x in modules if name.endswith("token_type_embeddings")]
        if not tables:
            return None
        return len(tables[0].weight) if "token_type_ids" in self.inputs else 1

    def computes_positions(self, config: Any) -> bool:
        """Whether the table of positions is computed, so that no checkpoint stores it."""
        name = self.computed_positions
        return bool(getattr(config, name, False)) if isinstance(name, str) else name

    def require_depth(self, encoder: int, decoder: int, where: str) -> None:
        """Raise `InputError` if `generate` cannot handle so many layers of each stack.

        Args:
            encoder: its layers.
            decoder: its layers.
            where: what has them, for the message.
        """
        if self.decoder and self.decoder.not_deeper and decoder > encoder:
            raise InputError(
                f"{where} has {encoder} layers in the encoder and {decoder} in the decoder, and "
                "`generate` of transformers makes a cache for as many as the encoder has; keep at "
                "least as many layers in the encoder",
                id="decoder-deeper-than-encoder",
            )

    def size_bounds(self) -> dict[str, tuple[int, int]]:
        """Name in the configuration -> the least and the most that it may be."""
        further = (self.embedding_width or self.width, self.head_width or self.width)
        bounds = {
            **dict.fromkeys(("hidden_size", self.width, *further), (1, WIDTH)),
            **dict.fromkeys(("vocab_size", "decoder_vocab_size"), (1, VOCABULARY)),
            **dict.fromkeys(("num_labels", "_num_labels"), (1, LABELS)),
            "max_position_embeddings": (1, POSITIONS),
            "type_vocab_size": (self.least_types, TYPES),
            "relative_attention_num_buckets": (4, DISTANCES),
            "relative_attention_max_distance": (4, DISTANCES),
        }
        # transformers takes BERT's names for those of every architecture.
        for x in (Stack(), *self.stacks):
            bounds |= {x.layers: (1, LAYERS), x.heads: (1, HEADS), x.neurons: (1, NEURONS)}
        return bounds


def decoder_tokens(config: Any) -> int:
    """How many tokens a model's decoder has; Marian's may differ from the encoder's."""
    return int(getattr(config, "decoder_vocab_size", None) or config.vocab_size)


def feed_forward(kind: Kind, layer: str, up: str, down: str, block: str = "") -> SublayerPaths:
    """The paths of a feed-forward part without a gate.

    Args:
        kind: of the sublayer.
        layer: its path, with `{i}` for the layer's number.
        up: from the layer on, the projection whose rows belong to neurons.
        down: the projection whose columns do.
        block: what is replaced when no neuron is left; empty: `up`.
    """
    inputs = {"up": up}
    return SublayerPaths(kind, layer, block or up, inputs, down, None, stand_in="feed_forward")
