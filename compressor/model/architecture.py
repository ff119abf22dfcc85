"""Facts about an architecture, as entries of `compressor.model.architectures`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from compressor.model.heads import CLASSIFIER, ENCODER_HEADS, Head
from compressor.model.sublayers import Kind, parts_of

PositionBias = Literal["every_layer", "first_layer", "stack"]
# The most that a configuration may ask for: several times what the largest models of the supported
# architectures have. docs/checkpoints.md lists them.
LAYERS, HEADS, WIDTH, NEURONS = 1024, 1024, 65_536, 1_048_576
VOCABULARY, POSITIONS, TYPES, LABELS = 16_777_216, 65_536, 65_536, 65_536
DISTANCES = 4096  # of relative positions
COMPUTED_POSITIONS = 8_388_608  # numbers in a table of sinusoidal positions, which are computed


@dataclass(frozen=True)
class SublayerPaths:
    """Paths of one kind of sublayer; `{i}` stands for the layer number.

    Args:
        layer: the module that holds the sublayer, from the architecture's `base` on; all other
            paths are relative to it.
        block: the module that is replaced when no unit is left; an attention's splits its input
            into heads.
        inputs: role -> path of each projection whose rows belong to units. Where one holds several,
            one after the other, their roles are joined by `+`: `query+key+value`. The output of a
            `gate` passes the activation and multiplies that of `up`.
        output: the projection whose columns belong to units.
        unit_count: attribute of the block that holds the number of units; None if it has none.
        unit_width: attribute of the block that holds the columns of a unit, where none holds their
            number; without either, each column of the output projection is a unit of its own.
        width: attribute of the block that holds units x unit width, if it has one.
        position_bias: where the table of the bias by distance is that is added to attention scores:
            in `every_layer`; in the `first_layer`, and each layer hands the bias on to the next; or
            in the `stack`, which gives it to all layers as `position_bias`. None without such bias.
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
        logits_bias: name of the buffer that is added to the logits, if there is one.
        output_scale: name of the setting by which the last hidden states are divided by the square
            root of their width; None where they never are.
        shifts_language: labels are shifted right, so that their last token, the target language,
            starts the decoder's input.
        not_deeper: it has at most as many layers as the encoder, for which `generate` makes a
            cache.
    """

    logits_bias: str | None = None
    output_scale: str | None = None
    shifts_language: bool = False
    not_deeper: bool = False


@dataclass(frozen=True)
class Sizes:
    """Names in `config.json` of further sizes, and the least number of token types.

    Args:
        width: of the hidden states.
        head_width: of a head, where it is not the width over the number of heads.
        embedding: of the embedding tables, where it is not the width.
    """

    width: str = "hidden_size"
    head_width: str | None = None
    embedding: str | None = None
    least_types: int = 1


@dataclass(frozen=True)
class Positions:
    """How tokens get their positions.

    Args:
        name: in `config.json`, of their number; None where they are relative alone.
        after_padding: they are counted from the one behind the padding token's id.
        computed: they are computed instead of learned; or the name of the setting for it.
    """

    name: str | None = "max_position_embeddings"
    after_padding: bool = False
    computed: bool | str = False


@dataclass(frozen=True)
class Weights:
    """Where checkpoints may differ from what the class of transformers has.

    Args:
        unused: patterns of weights that they may hold beside those of the class: heads of other
            tasks, which change no output. All others must be used.
        spare: pattern of weights that the class has and nothing reads: they may be missing.
        untied: weights that may differ from those that the configuration ties them to.
    """

    unused: tuple[str, ...] = ()
    spare: str | None = None
    untied: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Layers:
    """Properties of layers that matter where whole ones are dropped.

    Args:
        returns: what a layer returns: a `tensor`, or a `tuple` that begins with it.
        first_stays: from a configuration, whether the first layer differs and cannot be dropped.
        lists: names in the configuration of lists with an entry for every layer.
    """

    returns: Literal["tensor", "tuple"] = "tensor"
    first_stays: Callable[[Any], bool] = lambda config: False
    lists: tuple[str, ...] = ()


@dataclass(frozen=True)
class Architecture:
    """Facts about one `config.model_type`; the defaults are BERT's.

    The entry of an encoder in the table is that of its classifiers of texts; `for_class` makes
    those of its other models.

    Args:
        base: path of the module that holds the stacks; empty where it is the model itself.
        sublayers: paths of every kind of sublayer, in the canonical order.
        encoder, decoder: names of their sizes in the configuration; None if there is no decoder.
        inputs: names of what the encoder reads.
        head: the class of transformers that loads its models.
        feed_forward: `feed_forward_proj` where a configuration does not have it; None where the
            feed-forward parts are always the same.
        refuse: from a configuration, why its models cannot be pruned; None if they can.
        scores: how an encoder's attention scores are made, to which the `position_bias` of its
            sublayers is added: `products` of queries and keys, also with a `stack_bias` that all
            layers are given, of `rotated` ones (RoPE), or with products with positions too
            (`disentangled`).
        position_products: from a configuration, how many products with positions there are.
    """

    base: str
    sublayers: tuple[SublayerPaths, ...]
    encoder: Stack = Stack()
    decoder: DecoderStack | None = None
    sizes: Sizes = Sizes()
    positions: Positions = Positions()
    weights: Weights = Weights()
    layers: Layers = Layers()
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
        entry, weights = replace(self, head=ENCODER_HEADS[auto_class]), self.weights
        if not entry.head.ending:
            return replace(entry, base="", weights=replace(weights, spare=r"^pooler\."))
        unused = (*weights.unused, rf"^({self.base}\.)?pooler\.")
        return replace(entry, weights=replace(weights, unused=unused))

    def with_feed_forward(self, setting: str | None) -> Architecture:
        """The entry for models with this `feed_forward_proj`, such as `gated-gelu`; None: usual."""
        if not (setting or self.feed_forward or "").startswith("gated"):
            return self

        def gated(paths: SublayerPaths) -> SublayerPaths:
            if "up" not in paths.inputs:
                return paths
            up = paths.inputs["up"]
            return replace(paths, inputs={"gate": f"{up}_0", "up": f"{up}_1"})

        return replace(self, sublayers=tuple(map(gated, self.sublayers)))

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
        if self.positions.name is None:
            return None
        offset = int(config.pad_token_id) + 1 if self.positions.after_padding else 0
        return int(getattr(config, self.positions.name)) - offset

    def computes_positions(self, config: Any) -> bool:
        """Whether the table of positions is computed, so that no checkpoint stores it."""
        name = self.positions.computed
        return bool(getattr(config, name, False)) if isinstance(name, str) else name

    def size_bounds(self) -> dict[str, tuple[int, int]]:
        """Name in the configuration -> the least and the most that it may be."""
        sizes = self.sizes
        further = (sizes.embedding or sizes.width, sizes.head_width or sizes.width)
        bounds = {
            **dict.fromkeys(("hidden_size", sizes.width, *further), (1, WIDTH)),
            **dict.fromkeys(("vocab_size", "decoder_vocab_size"), (1, VOCABULARY)),
            **dict.fromkeys(("num_labels", "_num_labels"), (1, LABELS)),
            "max_position_embeddings": (1, POSITIONS),
            "type_vocab_size": (sizes.least_types, TYPES),
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
