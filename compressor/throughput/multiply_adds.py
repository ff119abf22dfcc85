"""The sizes of a model, its multiply-adds by operation, and the ratio of two models'.

Products with stored weights and the products of attention are counted, as the graphs compute them.
A translator runs the encoder graph once (with the keys and values of the cross-attention), and the
decoder graph once per generated token, with a cache that grows by one token each time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compressor.model.architectures import architecture
from compressor.model.sublayers import TOKEN_KIND, TOKEN_UNITS, kind_of
from compressor.tasks.base import Deployment

_OF_DECODER = ("decoder_self", "cross", "decoder_ffn", "vocabulary")


@dataclass(frozen=True)
class ModelShape:
    """Sizes of an encoder with a head, or of an encoder and a decoder, dense or pruned."""

    width: int
    head_dim: int
    embedding: int  # width of the embedding tables; projected to `width` where it differs
    encoder_heads: tuple[int, ...]  # as all counts of units by layer
    encoder_ffn: tuple[int, ...]
    decoder_heads: tuple[int, ...] = ()
    cross_heads: tuple[int, ...] = ()
    decoder_ffn: tuple[int, ...] = ()
    vocabulary: int = 0  # that a decoder scores; 0 without a decoder
    head: tuple[tuple[int, int], ...] = ()  # inputs, outputs of the layers from states to logits
    head_on_tokens: bool = False  # whether these are of all tokens, or of the first one
    gated: bool = False  # whether feed-forward parts have two projections up
    position_products: int = 0  # products with positions that attention scores have
    one_token: bool = False  # whether the last layer computes the token alone that the head reads
    # Tenths of a row's tokens that each encoder layer but the last hands on; empty: all.
    handed_on: tuple[int, ...] = ()

    @property
    def decodes(self) -> bool:
        """Whether there is a decoder, whose last projection is to a vocabulary."""
        return self.vocabulary > 0

    def tokens(self, source: int) -> Iterator[tuple[int, int]]:
        """Tokens of a row of `source` that each encoder layer gets, and that it hands on."""
        tenths, received = iter(self.handed_on), source
        for _ in self.encoder_heads:
            left = tokens_left(next(tenths, TOKEN_UNITS), source)
            yield received, min(received, left)
            received = min(received, left)


@dataclass(frozen=True)
class WorkSize:
    """The size of one batch.

    Args:
        batch: rows.
        source: padded source tokens per row.
        target: generated tokens per row; 0 without a decoder.
    """

    batch: int
    source: int
    target: int = 0


def tokens_left(tenths: int, source: int) -> int:
    """Tokens of a row of `source` that some tenths of them are: rounded up, and at least one."""
    return max(1, -(-tenths * source // TOKEN_UNITS))


def shape_of(
    task: Deployment,
    config: Mapping[str, Any],
    counts: Mapping[str, int],
    output_tokens: int | None = None,
    one_token: bool = False,
) -> ModelShape:
    """The shape of a checkpoint from its configuration.

    Args:
        task: the task of the checkpoint, which knows its head.
        config: contents of `config.json`, or `model.config.to_dict()`.
        counts: sublayer name (`encoder_self.0`, …) -> its number of units. All attention must be
            named; feed-forward parts that are not have all the configuration's neurons, and layers
            whose tokens are not hand on all.
        output_tokens: how many tokens a decoder scores; None for its whole vocabulary.
        one_token: whether an encoder's last layer computes one token alone.

    Raises:
        InputError: the architecture is not supported.
    """
    entry = architecture(str(config.get("model_type", "unknown")))
    entry = entry.with_feed_forward(config.get("feed_forward_proj"))
    encoder, decoder = entry.encoder, entry.decoder
    width = int(config[entry.width])

    def named(kind: str) -> tuple[int, ...]:
        layers = sum(kind_of(name) == kind for name in counts)
        return tuple(counts[f"{kind}.{index}"] for index in range(layers))

    def neurons(kind: str, layers: int, dense: int) -> tuple[int, ...]:
        return tuple(counts.get(f"{kind}.{index}", dense) for index in range(layers))

    encoder_heads = named("encoder_self")
    encoder_ffn = neurons("encoder_ffn", len(encoder_heads), config[encoder.neurons])
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
            one_token=one_token,
            handed_on=named(TOKEN_KIND),
        )
    decoder_heads = named("decoder_self")
    return replace(
        shape,
        decoder_heads=decoder_heads,
        cross_heads=named("cross"),
        decoder_ffn=neurons("decoder_ffn", len(decoder_heads), config[decoder.neurons]),
        vocabulary=output_tokens or int(config.get("decoder_vocab_size") or config["vocab_size"]),
    )


def multiply_adds(shape: ModelShape, size: WorkSize) -> Counter[str]:
    """Multiply-adds of one batch, over all runs of its graph, by part of the model.

    Args:
        shape: of the model.
        size: of the batch.

    Returns:
        Part -> number; parts are the kinds of sublayers, `embeddings`, `vocabulary` and
        `classifier`.
    """
    work = Counter[str]()
    width = shape.width
    rows = size.batch * size.source
    if shape.embedding != width:
        work["embeddings"] = rows * shape.embedding * width
    layers = zip(shape.encoder_heads, shape.encoder_ffn, shape.tokens(size.source), strict=True)
    for number, (heads, ffn, tokens) in enumerate(layers, 1):
        inner = heads * shape.head_dim
        received, states = (size.batch * count for count in tokens)
        if shape.one_token and number == len(shape.encoder_heads):
            states = size.batch
            # Keys and values of all tokens; products with positions of one query for each key.
            work["encoder_self"] += received * width * 2 * inner
            work["encoder_self"] += _attention(states, width, inner, received, 1)
            work["encoder_self"] += shape.position_products * received * inner
        else:
            # All tokens attend, before it is known which of them go on.
            work["encoder_self"] += received * width * 3 * inner + 2 * received * tokens[0] * inner
            work["encoder_self"] += states * inner * width
            # Products with the positions of all distances.
            work["encoder_self"] += shape.position_products * received * 2 * size.source * inner
        work["encoder_ffn"] += states * width * ffn * (2 + shape.gated)
    if not shape.decodes:
        states = rows if shape.head_on_tokens else size.batch
        work["classifier"] = sum(states * inputs * outputs for inputs, outputs in shape.head)
        return work
    # Keys and values of the source; then all steps, of which step t (from 0) sees t + 1 tokens.
    work["cross"] = rows * width * 2 * shape.head_dim * sum(shape.cross_heads)
    rows = size.batch * size.target
    own_keys = size.batch * size.target * (size.target + 1) // 2
    steps = zip(shape.decoder_heads, shape.cross_heads, shape.decoder_ffn, strict=True)
    for heads, cross, ffn in steps:
        inner, crossing = heads * shape.head_dim, cross * shape.head_dim
        work["decoder_self"] += _attention(rows, width, inner, own_keys, 3)
        work["cross"] += _attention(rows, width, crossing, rows * size.source, 1)
        work["decoder_ffn"] += rows * width * ffn * (2 + shape.gated)
    work["vocabulary"] = rows * width * shape.vocabulary
    return work


def encoder_share(shape: ModelShape, sizes: Sequence[WorkSize]) -> float:
    """Share of a translator's multiply-adds in the graph that runs once, before tokens come.

    That is the encoder with the keys and values of the cross-attention.

    Args:
        shape: of a model that decodes.
        sizes: of the batches.
    """
    encoder = replace(shape, decoder_heads=(), cross_heads=(), decoder_ffn=(), vocabulary=0)
    crossing = 2 * shape.width * shape.head_dim * sum(shape.cross_heads)
    alone = sum(
        total_multiply_adds(encoder, size) + size.batch * size.source * crossing for size in sizes
    )
    return alone / sum(total_multiply_adds(shape, size) for size in sizes)


def _attention(rows: int, width: int, inner: int, keys: int, products: int) -> int:
    """Multiply-adds of one attention sublayer: projections, scores, mixing of values, output.

    Args:
        rows: queries of all rows and steps.
        width: of the model.
        inner: heads x head_dim.
        keys: keys that each query sees, summed over queries.
        products: projections of its input: 3 if keys and values are among them, otherwise 1.
    """
    return rows * width * products * inner + 2 * keys * inner + rows * inner * width


def total_multiply_adds(shape: ModelShape, size: WorkSize) -> int:
    """Multiply-adds of one batch; see `multiply_adds`."""
    return multiply_adds(shape, size).total()


def ratio_of_multiply_adds(
    dense: ModelShape, pruned: ModelShape, sizes: Sequence[WorkSize]
) -> float:
    """Multiply-adds of the dense model over those of the pruned one, summed over batches.

    Args:
        dense: shape of the dense model.
        pruned: shape of the pruned model.
        sizes: of the batches.

    Returns:
        Infinite if the pruned model does no work.
    """
    totals = []
    for shape in (dense, pruned):
        work = sum((multiply_adds(shape, size) for size in sizes), Counter[str]())
        if shape.decodes and not any(shape.cross_heads):
            # The runtime skips the encoder if no cross-attention head reads it.
            work = Counter({part: n for part, n in work.items() if part in _OF_DECODER})
        totals.append(work.total())
    before, after = totals
    return before / after if after else math.inf if before else 1.0
