"""The theoretical limit of a smaller model's speed-up, from its work, operation by operation.

Every operation of the exported graphs is counted in multiply-adds and in bytes moved:

- weights are read once per run of a graph; of embedding tables, only the rows looked up;
- each operation reads its inputs and writes its outputs, 4 bytes a value in float32;
- attention is counted as the graphs compute it (see `compressor/export/attention.py`), not fused:
  one product for query, key and value; copies into and out of heads; scores written, masked,
  normalized and read again; the key/value cache copied in every decoding step;
- residual addition and normalization, which pruning does not remove, are counted as one pass.

A translator runs the encoder graph once (it also computes the keys and values of the
cross-attention), and the decoder graph once per generated token, with a cache that grows by one
token each time.

`Limit.macs` and `Limit.bytes` are the ratios, dense over pruned, of the two sums: the gain on a
machine whose time goes into multiplying alone, or into moving data alone. `Limit.time` is the ratio
of roofline times (Williams, Waterman & Patterson 2009) on this machine, the sum over operations of

    max(multiply-adds / rate, bytes / bandwidth) + nodes x launch      on a CPU
    max(multiply-adds / rate, bytes / bandwidth, nodes x launch)       on a GPU,

with rate, bandwidth and the time to launch a node measured through onnxruntime (`machine.py`).
A CPU starts a node when the last one is done; for a GPU, nodes are launched while earlier ones run.

Why a measured speed-up stays below the limit: work that pruning removes is counted in full, work
that stays is counted at its minimum, and work that is not counted (the generation loop, input and
output, the parts of a node that are not arithmetic) is nearly the same for both models. Three
things can exceed the limit: noise; a pruned model that fits into a processor cache that the dense
one does not fit into; and at batch size 1 the handling of cache tensors, which is not counted and
goes with a layer that loses all its heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.throughput.machine import Machine
from compressor.throughput.shapes import ModelShape

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WorkSize:
    """One batch: rows, padded source tokens per row, generated tokens per row."""

    batch: int
    source: int
    target: int = 0


@dataclass(frozen=True)
class Operation:
    """One operation in every run of its graph (one run, or one per generated token)."""

    graph: Literal["model", "encoder", "decoder"]
    name: str
    macs: Array  # [runs]
    bytes: Array  # [runs]
    stored: bool  # whether it multiplies by stored weights, which may have a low precision
    nodes: int = 1  # nodes of the graph that it takes


@dataclass(frozen=True)
class Limit:
    """Upper bounds of a speed-up; 1 where nothing was removed."""

    time: float
    macs: float
    bytes: float


@dataclass(frozen=True)
class _Counter:
    """Counts the operations of one graph and collects them in `work`."""

    work: list[Operation]
    graph: Literal["model", "encoder", "decoder"]
    runs: int
    weight_bytes: float
    value_bytes: float

    def add(
        self,
        name: str,
        macs: Array | float,
        values: Array | float,
        weights: float = 0,
        nodes: int = 1,
    ) -> None:
        moved = self.value_bytes * np.asarray(values, dtype=np.float64)
        moved = moved + self.weight_bytes * weights
        self.work.append(
            Operation(
                self.graph,
                name,
                np.broadcast_to(np.asarray(macs, dtype=np.float64), self.runs),
                np.broadcast_to(moved, self.runs),
                weights > 0,
                nodes,
            )
        )

    def linear(self, name: str, rows: float, inputs: float, outputs: float, nodes: int = 1) -> None:
        """A product with stored weights [inputs, outputs]; its bias may be a node of its own."""
        self.add(
            name,
            macs=rows * inputs * outputs,
            values=rows * (inputs + outputs),
            weights=(inputs + 1) * outputs,
            nodes=nodes,
        )

    def copy(self, name: str, values: float, nodes: int) -> None:
        """A change of layout: all values are read and written once."""
        self.add(name, macs=0, values=2 * values, nodes=nodes)

    def attend(
        self,
        name: str,
        batch: float,
        heads: int,
        dim: int,
        queries: float,
        keys: Array | float,
        *,
        masked: bool,
    ) -> None:
        """Scores, mask, softmax and weighted values; all [batch, heads, queries, keys]."""
        scores = batch * heads * queries * np.asarray(keys, dtype=np.float64)
        query, key = batch * heads * queries * dim, scores / queries * dim
        self.add(f"{name}.scores", macs=scores * dim, values=query + key + scores)
        if masked:
            self.add(f"{name}.mask", macs=0, values=2 * scores)
        self.add(f"{name}.softmax", macs=0, values=2 * scores)
        self.add(f"{name}.values", macs=scores * dim, values=scores + key + query)

    def normalize(self, name: str, rows: float, width: int) -> None:
        """Residual addition and layer normalization in one pass: two inputs, one output."""
        self.add(name, macs=0, values=3 * rows * width)

    def feed_forward(self, name: str, rows: float, width: int, inner: int, *, gated: bool) -> None:
        """The projection up to `inner` values, the activation, and the projection back.

        A gated one has two projections up, in one product, of which one is multiplied in.
        """
        if inner:
            self.linear(f"{name}.up", rows, width, inner * (1 + gated), nodes=2)
            if gated:
                self.add(f"{name}.gate", macs=0, values=3 * rows * inner)
            self.add(f"{name}.activation", macs=0, values=2 * rows * inner)
            self.linear(f"{name}.down", rows, inner, width)
        self.normalize(f"{name}.norm", rows, width)


def operations(
    shape: ModelShape, size: WorkSize, *, weight_bytes: float = 4, value_bytes: float = 4
) -> list[Operation]:
    """All operations of one batch.

    Args:
        shape: the model.
        size: the batch; `target` counts decoding steps and must be at least 1 with a decoder.
        weight_bytes, value_bytes: bytes per stored weight and per computed value.

    Raises:
        InputError: a translator's batch without generated tokens, or sizes below 1.
    """
    if min(size.batch, size.source) < 1:
        raise InputError(
            f"the work of {size} cannot be counted; all its sizes must be at least 1",
            id="work-size-too-small",
        )
    work: list[Operation] = []
    graph: Literal["model", "encoder"] = "encoder" if shape.decodes else "model"
    once = _Counter(work, graph, 1, weight_bytes, value_bytes)
    _count_encoder(once, shape, size.batch, size.source)
    if not shape.decodes:
        rows = size.batch * size.source if shape.head_on_tokens else size.batch
        for number, (inputs, outputs) in enumerate(shape.head):
            once.linear(f"classifier.{number}", rows, inputs, outputs)
        return work
    if size.target < 1:
        raise InputError(
            f"the work of {size} cannot be counted; give the number of generated tokens",
            id="target-length-missing",
        )
    steps = _Counter(work, "decoder", size.target, weight_bytes, value_bytes)
    _count_decoder(steps, shape, size.batch, size.source)
    return work


def _count_encoder(count: _Counter, shape: ModelShape, batch: float, source: float) -> None:
    rows, width, dim = batch * source, shape.width, shape.head_dim
    count.add("embedding", macs=0, values=2 * rows * shape.embedding)  # look up, write
    if shape.embedding != width:
        count.linear("embedding.projection", rows, shape.embedding, width)
    for number, (heads, ffn) in enumerate(zip(shape.encoder_heads, shape.encoder_ffn, strict=True)):
        name = f"encoder_self.{number}"
        if heads:
            inner = heads * dim
            count.linear(f"{name}.qkv", rows, width, 3 * inner, nodes=2)
            count.copy(f"{name}.split", 3 * rows * inner, nodes=7)
            count.attend(name, batch, heads, dim, source, source, masked=True)
            for _ in range(shape.position_products):  # with every distance of two tokens
                scores = batch * heads * source * 2 * source
                count.add(f"{name}.positions", scores * dim, rows * inner + 3 * scores, nodes=4)
            count.copy(f"{name}.merge", rows * inner, nodes=2)
            count.linear(f"{name}.output", rows, inner, width)
        count.normalize(f"{name}.norm", rows, width)
        count.feed_forward(f"encoder_ffn.{number}", rows, width, ffn, gated=shape.gated)
    crossing = 2 * dim * sum(shape.cross_heads)
    if crossing:
        layers = sum(heads > 0 for heads in shape.cross_heads)
        count.linear("cross.keys_values", rows, width, crossing, nodes=2)
        count.copy("cross.keys_values.split", rows * crossing, nodes=1 + 4 * layers)


def _count_decoder(count: _Counter, shape: ModelShape, rows: float, source: float) -> None:
    """One step per run; run t (from 0) finds t tokens in the cache and leaves t + 1."""
    width, dim = shape.width, shape.head_dim
    past = np.arange(count.runs, dtype=np.float64)
    count.add("decoder.embedding", macs=0, values=2 * rows * width)
    layers = zip(shape.decoder_heads, shape.cross_heads, shape.decoder_ffn, strict=True)
    for number, (heads, cross, ffn) in enumerate(layers):
        name, inner = f"decoder_self.{number}", heads * dim
        if heads:
            count.linear(f"{name}.qkv", rows, width, 3 * inner, nodes=2)
            count.copy(f"{name}.split", 3 * rows * inner, nodes=7)
            count.add(f"{name}.cache", 0, values=2 * rows * inner * (2 * past + 1), nodes=2)
            count.attend(name, rows, heads, dim, 1, past + 1, masked=False)
            count.copy(f"{name}.merge", rows * inner, nodes=2)
            count.linear(f"{name}.output", rows, inner, width)
        count.normalize(f"{name}.norm", rows, width)
        name, inner = f"cross.{number}", cross * dim
        if cross:
            count.linear(f"{name}.query", rows, width, inner, nodes=2)
            count.copy(f"{name}.split", rows * inner, nodes=2)
            count.attend(name, rows, cross, dim, 1, source, masked=True)
            count.copy(f"{name}.merge", rows * inner, nodes=2)
            count.linear(f"{name}.output", rows, inner, width)
        count.normalize(f"{name}.norm", rows, width)
        count.feed_forward(f"decoder_ffn.{number}", rows, width, ffn, gated=shape.gated)
    count.linear("vocabulary", rows, width, shape.vocabulary)


def total_macs(work: Sequence[Operation]) -> float:
    """Multiply-adds of all operations in all runs."""
    return float(sum(operation.macs.sum() for operation in work))


def total_bytes(work: Sequence[Operation]) -> float:
    """Bytes moved by all operations in all runs."""
    return float(sum(operation.bytes.sum() for operation in work))


def roofline_seconds(work: Sequence[Operation], machine: Machine) -> float:
    """Lower bound of the time of these operations, one after the other, on a machine."""
    combine = np.maximum if machine.runs_ahead else np.add
    seconds = 0.0
    for operation in work:
        rate = machine.stored_rate if operation.stored else machine.value_rate
        bound = np.maximum(operation.macs / rate, operation.bytes / machine.bandwidth)
        seconds += float(combine(bound, operation.nodes * machine.launch).sum())
    return seconds


def limit_of(
    dense: ModelShape, pruned: ModelShape, machine: Machine, sizes: Sequence[WorkSize]
) -> Limit:
    """The limit of the speed-up over these batches together.

    Args:
        dense, pruned: the two models.
        machine: measured rates, and the bytes per weight and value of the precision in use.
        sizes: the batches.

    Raises:
        InputError: no batches.
    """
    if not sizes:
        raise InputError(
            "a limit over no batches is undefined; give at least one batch size", id="no-batches"
        )
    totals = []
    for shape in (dense, pruned):
        work = [operation for size in sizes for operation in _run(shape, size, machine)]
        totals.append((roofline_seconds(work, machine), total_macs(work), total_bytes(work)))
    seconds, macs, moved = (before / after for before, after in zip(*totals, strict=True))
    return Limit(seconds, macs, moved)


def _run(shape: ModelShape, size: WorkSize, machine: Machine) -> list[Operation]:
    """The operations the runtime executes: no encoder if no cross-attention head reads it."""
    work = operations(
        shape, size, weight_bytes=machine.weight_bytes, value_bytes=machine.value_bytes
    )
    if not shape.decodes or any(shape.cross_heads):
        return work
    return [operation for operation in work if operation.graph == "decoder"]
