"""The sizes of a model, to count its multiply-adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from compressor.model.architectures import architecture
from compressor.model.sublayers import kind_of
from compressor.tasks.base import Deployment


@dataclass(frozen=True)
class ModelShape:
    """Sizes of an encoder with a head, or of an encoder and a decoder, dense or pruned.

    Heads and feed-forward widths are given for each layer, in layer order. `head` lists the
    (inputs, outputs) of the linear layers that turn hidden states into logits: the first token's,
    or with `head_on_tokens` those of all tokens. `gated` feed-forward parts have two projections
    up, whose results are multiplied. `position_products` counts the products with positions that
    attention scores have.
    """

    width: int
    head_dim: int
    embedding: int  # width of the embedding tables; projected to `width` where it differs
    encoder_heads: tuple[int, ...]
    encoder_ffn: tuple[int, ...]
    decoder_heads: tuple[int, ...] = ()
    cross_heads: tuple[int, ...] = ()
    decoder_ffn: tuple[int, ...] = ()
    vocabulary: int = 0
    head: tuple[tuple[int, int], ...] = ()
    head_on_tokens: bool = False
    gated: bool = False
    position_products: int = 0

    @property
    def decodes(self) -> bool:
        """Whether it has a decoder, with an output projection to the vocabulary."""
        return self.vocabulary > 0


def shape_of(
    task: Deployment,
    config: Mapping[str, Any],
    counts: Mapping[str, int],
    output_tokens: int | None = None,
) -> ModelShape:
    """The shape of a checkpoint from its `config.json`.

    Args:
        config: contents of `config.json`, or `model.config.to_dict()`.
        counts: sublayer name (`encoder_self.0`, …) -> its number of units. All attention must be
            named; feed-forward parts that are not have all the configuration's neurons.
        output_tokens: how many tokens a decoder scores; None means its whole vocabulary.

    Raises:
        InputError: unsupported architecture.
    """
    entry = architecture(str(config.get("model_type", "unknown")))
    entry = entry.with_feed_forward(config.get("feed_forward_proj"))
    encoder, decoder = entry.encoder, entry.decoder
    width = int(config[entry.width])
    encoder_heads = _heads(counts, "encoder_self")
    encoder_ffn = _neurons(counts, "encoder_ffn", len(encoder_heads), config[encoder.neurons])
    if entry.head_width is None:  # a configuration has the dense model's heads
        head_dim = width // int(config[encoder.heads])
    else:
        head_dim = int(config[entry.head_width])
    shape = ModelShape(width, head_dim, width, encoder_heads, encoder_ffn, gated=entry.is_gated)
    if decoder is None:
        return replace(
            shape,
            embedding=int(config.get(entry.embedding_width or entry.width) or width),
            head=task.head(config, width),
            head_on_tokens=task.head_on_tokens,
            position_products=entry.position_products(config),
        )
    decoder_heads = _heads(counts, "decoder_self")
    return replace(
        shape,
        decoder_heads=decoder_heads,
        cross_heads=_heads(counts, "cross"),
        decoder_ffn=_neurons(counts, "decoder_ffn", len(decoder_heads), config[decoder.neurons]),
        vocabulary=output_tokens or int(config.get("decoder_vocab_size") or config["vocab_size"]),
    )


def _heads(counts: Mapping[str, int], kind: str) -> tuple[int, ...]:
    layers = sum(kind_of(name) == kind for name in counts)
    return tuple(counts[f"{kind}.{index}"] for index in range(layers))


def _neurons(counts: Mapping[str, int], kind: str, layers: int, dense: int) -> tuple[int, ...]:
    return tuple(counts.get(f"{kind}.{index}", dense) for index in range(layers))
