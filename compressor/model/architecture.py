"""What there is to know about an architecture, whose entries are in `architectures.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from compressor.errors import InputError
from compressor.model.sentence_settings import SentenceSettings, is_cross_encoder
from compressor.model.sublayers import Kind, parts_of

if TYPE_CHECKING:
    from torch import nn

PositionBias = Literal["every_layer", "first_layer", "stack"]
# The most that a configuration may ask for: several times what the largest models of the supported
# architectures have. docs/checkpoints.md lists them.
LAYERS, HEADS, WIDTH, NEURONS = 1024, 1024, 65_536, 1_048_576
VOCABULARY, POSITIONS, TYPES, LABELS = 16_777_216, 65_536, 65_536, 65_536
DISTANCES = 4096  # of relative positions
COMPUTED_POSITIONS = 8_388_608  # numbers in a table of sinusoidal positions, which are computed


@dataclass(frozen=True)
class Head:
    """A class of transformers, and the task that its models are usually for."""

    auto_class: str
    task: str

    @property
    def ending(self) -> str:
        """The end of its models' class names; empty for an encoder without a head."""
        return self.auto_class.removeprefix("AutoModel")

    def usual_task(self, config: Any) -> str:
        """The task of a model with this configuration, where the user names none."""
        return self.task

    def complete(
        self, model: nn.Module, source: Path, settings: SentenceSettings | None, allow_pickle: bool
    ) -> None:
        """Add to a model loaded from a directory what transformers leaves out, in place."""


class _Classifier(Head):
    def usual_task(self, config: Any) -> str:
        if config.problem_type == "multi_label_classification":
            return "multilabel"
        if config.num_labels != 1:
            return self.task
        return "reranking" if is_cross_encoder(config) else "regression"


class _Reader(Head):  # answers questions by a part of a text
    def complete(self, model: nn.Module, *source: Any) -> None:
        from compressor.model.modes import add_span_logits

        add_span_logits(model)


class _Encoder(Head):  # without one in transformers; that of sentence-transformers is added
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
    """Paths of one kind of sublayer, as in `Sublayer`.

    Args:
        layer: the module that holds the sublayer, from the architecture's `base` on, with `{i}` for
            the layer's number; all other paths are relative to it.
        unit_count, unit_width, width: attributes of the block that hold the number of units, the
            columns of a unit, and their product; without the first two each column of the output
            projection is a unit of its own.
        position_bias: where the table of the bias by distance is that is added to attention scores:
            in `every_layer`; in the `first_layer`, and each layer hands the bias on to the next; or
            in the `stack`, which gives it to all layers as `position_bias`. None without such bias.
        stand_in: what replaces the block when no unit is left: `feed_forward`, `attention`, or
            `bias_to_hand_on`, which still makes the bias for other layers.
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


@dataclass(frozen=True)
class Stack:
    """The names in `config.json` of an encoder's or decoder's sizes; the defaults are BERT's."""

    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    neurons: str = "intermediate_size"


@dataclass(frozen=True)
class DecoderStack(Stack):
    """A decoder's sizes, and how its models differ from BART's.

    Args:
        logits_bias: the buffer that is added to the logits, if there is one.
        output_scale: the setting by which the last hidden states are divided by the square root of
            their width; None where they never are.
        shifts_language: labels are shifted right, so that their last token, the target language,
            starts the decoder's input.
        not_deeper: `generate` makes a cache for as many layers as the encoder has.
    """

    logits_bias: str | None = None
    output_scale: str | None = None
    shifts_language: bool = False
    not_deeper: bool = False


@dataclass(frozen=True)
class Architecture:
    """Facts about one `config.model_type`; the defaults are BERT's.

    The entry of an encoder in the table is that of its classifiers of texts; `for_class` makes
    those of its other models. Sizes are the names of settings in `config.json`.

    Args:
        base: path of the module that holds the stacks; empty where it is the model itself.
        sublayers: paths of every kind of sublayer, in the canonical order.
        head_width: where it is not the width over the number of heads.
        embedding_width: where it is not the width.
        positions: None where they are relative alone.
        positions_after_padding: they are counted from the one behind the padding token's id.
        computed_positions: they are computed instead of learned; or the name of the setting for it.
        unused_weights: patterns of weights that checkpoints may hold beside those of the class:
            heads of other tasks, which change no output. All others must be used.
        spare_weights: pattern of weights that the class has and nothing reads: they may be missing.
        untied_weights: those that may differ from those that the configuration ties them to.
        layers_return: a `tensor`, or a `tuple` that begins with it.
        first_layer_stays: from a configuration, whether the first layer cannot be dropped.
        layer_lists: names in the configuration of lists with an entry for every layer.
        inputs: of the encoder.
        feed_forward: `feed_forward_proj` where a configuration does not have it; None where the
            feed-forward parts are always the same.
        refuse: from a configuration, why its models cannot be pruned; None if they can.
        scores: how an encoder's attention scores are made: `products` of queries and keys, also
            with a `stack_bias` that all layers are given, of `rotated` ones (RoPE), or with
            `position_products` (`disentangled`), whose number a configuration tells.
    """

    base: str
    sublayers: tuple[SublayerPaths, ...]
    encoder: Stack = Stack()
    decoder: DecoderStack | None = None
    width: str = "hidden_size"
    head_width: str | None = None
    embedding_width: str | None = None
    least_types: int = 1
    positions: str | None = "max_position_embeddings"
    positions_after_padding: bool = False
    computed_positions: bool | str = False
    unused_weights: tuple[str, ...] = ()
    spare_weights: str | None = None
    untied_weights: frozenset[str] = frozenset()
    layers_return: Literal["tensor", "tuple"] = "tensor"
    first_layer_stays: Callable[[Any], bool] = lambda config: False
    layer_lists: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    head: Head = CLASSIFIER
    feed_forward: str | None = None
    refuse: Callable[[Any], str | None] = lambda config: None
    scores: Literal["products", "stack_bias", "rotated", "disentangled"] = "products"
    position_products: Callable[[Mapping[str, Any]], int] = lambda config: 0

    @property
    def task(self) -> str:
        """The usual task of its models."""
        return self.head.task

    @property
    def auto_class(self) -> str:
        """The class of transformers that loads its models."""
        return self.head.auto_class

    @property
    def logits_bias(self) -> str | None:
        """Name of the buffer that is added to a decoder's logits, if there is one."""
        return self.decoder.logits_bias if self.decoder else None

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The encoder, and the decoder if there is one."""
        return (self.encoder,) if self.decoder is None else (self.encoder, self.decoder)

    @property
    def position_bias(self) -> PositionBias | None:
        """Where its attention has the table of a bias by distance, as in `SublayerPaths`."""
        return next((x.position_bias for x in self.sublayers if x.position_bias), None)

    @property
    def plain_scores(self) -> bool:
        """Whether attention scores are products of queries and keys alone."""
        return self.scores == "products" and self.position_bias is None

    @property
    def is_gated(self) -> bool:
        """Whether its feed-forward parts have a gate."""
        return any("gate" in parts_of(role) for x in self.sublayers for role in x.inputs)

    def for_class(self, auto_class: str) -> Architecture:
        """The entry of the same encoder with a head of `ENCODER_HEADS`; else it is unchanged."""
        if auto_class == self.auto_class or self.decoder or auto_class not in ENCODER_HEADS:
            return self
        head = ENCODER_HEADS[auto_class]
        if not head.ending:
            return replace(self, head=head, base="", spare_weights=r"^pooler\.")
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

    def computes_positions(self, config: Any) -> bool:
        """Whether the table of positions is computed, so that no checkpoint stores it."""
        name = self.computed_positions
        return bool(getattr(config, name, False)) if isinstance(name, str) else name

    def require_depth(self, encoder: int, decoder: int, where: str) -> None:
        """Raise InputError if `generate` cannot handle so many layers of each stack."""
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
    """A feed-forward part of two projections."""
    inputs = {"up": up}
    return SublayerPaths(kind, layer, block or up, inputs, down, None, stand_in="feed_forward")
