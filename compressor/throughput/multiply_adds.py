"""The multiply-adds of a model, counted operation by operation, and the ratio of two models'.

Products with stored weights and of attention are counted as the graphs compute them (see
`compressor/export/attention.py`); no other operations are counted. A translator runs the encoder
graph once (it also computes the keys and values of the cross-attention), and the decoder graph once
per generated token, with a cache that grows by one token each time.

The ratio accompanies a measured speed-up and does not predict it: the time of an operation also
depends on its size, its memory traffic and its dependencies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from compressor.throughput.shapes import ModelShape


@dataclass(frozen=True)
class WorkSize:
    """One batch: rows, padded source tokens per row, generated tokens per row."""

    batch: int
    source: int
    target: int = 0


def multiply_adds(shape: ModelShape, size: WorkSize) -> dict[str, int]:
    """Name of an operation -> multiply-adds of one batch, over all runs of its graph.

    Names begin with a kind of sublayer, `embedding`, `vocabulary` or `classifier`. `size.target`
    is the number of decoding steps.
    """
    work = _encoder(shape, size.batch, size.source)
    if not shape.decodes:
        rows = size.batch * size.source if shape.head_on_tokens else size.batch
        for number, (inputs, outputs) in enumerate(shape.head):
            work[f"classifier.{number}"] = rows * inputs * outputs
        return work
    return work | _decoder(shape, size)


def _attention(
    name: str, rows: int, width: int, inner: int, keys: int, products: int
) -> dict[str, int]:
    """One attention: `products` projections of its input, scores, values, output projection.

    Args:
        rows: number of queries of all rows and steps.
        inner: heads x head_dim.
        keys: number of keys per query, summed over all queries.
    """
    return {
        f"{name}.inputs": rows * width * products * inner,
        f"{name}.scores": keys * inner,
        f"{name}.values": keys * inner,
        f"{name}.output": rows * inner * width,
    }


def _feed_forward(name: str, rows: int, width: int, inner: int, *, gated: bool) -> dict[str, int]:
    """The projection up to `inner` values (two if gated), and the projection down."""
    return {
        f"{name}.up": rows * width * inner * (1 + gated),
        f"{name}.down": rows * inner * width,
    }


def _encoder(shape: ModelShape, batch: int, source: int) -> dict[str, int]:
    rows, width = batch * source, shape.width
    work: dict[str, int] = {}
    if shape.embedding != width:
        work["embeddings.projection"] = rows * shape.embedding * width
    for number, (heads, ffn) in enumerate(zip(shape.encoder_heads, shape.encoder_ffn, strict=True)):
        name, inner = f"encoder_self.{number}", heads * shape.head_dim
        work |= _attention(name, rows, width, inner, rows * source, 3)
        # Products with the positions of all distances.
        work[f"{name}.positions"] = shape.position_products * rows * 2 * source * inner
        work |= _feed_forward(f"encoder_ffn.{number}", rows, width, ffn, gated=shape.gated)
    crossing = 2 * shape.head_dim * sum(shape.cross_heads)
    work["cross.keys_values"] = rows * width * crossing
    return work


def _decoder(shape: ModelShape, size: WorkSize) -> dict[str, int]:
    """All steps; step t (from 0) attends to t + 1 tokens."""
    width, rows = shape.width, size.batch * size.target
    own_keys = size.batch * size.target * (size.target + 1) // 2
    work: dict[str, int] = {}
    layers = zip(shape.decoder_heads, shape.cross_heads, shape.decoder_ffn, strict=True)
    for number, (heads, cross, ffn) in enumerate(layers):
        inner, crossing = heads * shape.head_dim, cross * shape.head_dim
        work |= _attention(f"decoder_self.{number}", rows, width, inner, own_keys, 3)
        work |= _attention(f"cross.{number}", rows, width, crossing, rows * size.source, 1)
        work |= _feed_forward(f"decoder_ffn.{number}", rows, width, ffn, gated=shape.gated)
    work["vocabulary"] = rows * width * shape.vocabulary
    return work


def total_multiply_adds(shape: ModelShape, size: WorkSize) -> int:
    """Multiply-adds of one batch; see `multiply_adds`."""
    return sum(multiply_adds(shape, size).values())


def ratio_of_multiply_adds(
    dense: ModelShape, pruned: ModelShape, sizes: Sequence[WorkSize]
) -> float:
    """Dense over pruned, summed over batches; infinite if the pruned model does no work."""
    before, after = (sum(_run(shape, size) for size in sizes) for shape in (dense, pruned))
    if not after:
        return math.inf if before else 1.0
    return before / after


def _run(shape: ModelShape, size: WorkSize) -> int:
    """Multiply-adds of the runtime, which skips the encoder if no cross-attention head reads it."""
    if not shape.decodes or any(shape.cross_heads):
        return total_multiply_adds(shape, size)
    return sum(_decoder(shape, size).values())
