"""What speed-up a smaller model can have at most: its work, operation by operation.

Every operation of the exported graphs is counted in multiply-adds and in bytes moved:

- weights are read once per run of a graph, of embedding tables only the rows looked up;
- each operation reads its inputs and writes its outputs, 4 bytes a value in float32;
- attention is counted as the graphs do it (see `compressor/export/attention.py`), not fused:
  one product for query, key and value, copies into and out of heads, scores written, masked,
  normalized and read again, the grown key/value cache copied in every decoding step;
- residual addition and normalisation, which no pruning removes, are counted at their least.

A translator runs the encoder graph once (it also makes the cross-attention's keys and values),
and the decoder graph once per generated token, with a cache that grows by one each time.

`Limit.macs` and `Limit.bytes` are the quotients, dense over pruned, of the two sums: what a
machine would gain that did nothing but multiply, or nothing but move data. `Limit.time` is the
quotient of roofline times (Williams, Waterman & Patterson 2009) on the machine at hand, the sum
over operations of

    max(multiply-adds / rate, bytes / bandwidth) + nodes x launch      on a CPU
    max(multiply-adds / rate, bytes / bandwidth, nodes x launch)       on a GPU,

with rate, bandwidth and the time to launch a node measured through onnxruntime (`machine.py`).
A CPU starts a node when the last one is done, a GPU's host goes ahead of it.

Why a real speed-up stays below: the counts take what pruning removes as high as the graphs
make it, and what stays as low as possible; what is not counted (the generation loop, input and
output, the parts of a node that are not arithmetic) is nearly the same for both models and only
dilutes the gain. Three things can beat the limit: noise; a pruned model that fits into a
processor cache for which the dense one is too large; and at batch size 1 the bookkeeping of
cache tensors, which goes with a layer that loses all its heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.tasks import get_task
from compressor.throughput.machine import Machine
from compressor.throughput.shapes import ModelShape, shape_of

__all__ = ["Limit", "Machine", "ModelShape", "Operation", "WorkSize", "limit_of", "operations"]
__all__ += ["shape_of", "total_bytes", "total_macs"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WorkSize:
    """One batch: rows, padded source tokens per row, generated tokens per row."""

    batch: int
    source: int
    target: int = 0
    beams: int = 1


@dataclass(frozen=True)
class Operation:
    """One operation in every run of its graph (one run, or one per generated token)."""

    graph: Literal["model", "encoder", "decoder"]
    name: str
    macs: Array  # [runs]
    bytes: Array  # [runs]
    stored: bool  # whether it multiplies with stored weights, which may have low precision
    nodes: int = 1  # nodes of the graph that it takes


@dataclass(frozen=True)
class Limit:
    """The most a speed-up can be; 1 where nothing was removed."""

    time: float
    macs: float
    bytes: float


@dataclass(frozen=True)
class _Counter:
    """Counts operations on `rows` vectors per run; collects them in `found`."""

    found: list[Operation]
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
        self.found.append(
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
        """A product with stored weights; the bias is one of the nodes, or part of another."""
        self.add(
            name,
            macs=rows * inputs * outputs,
            values=rows * (inputs + outputs),
            weights=(inputs + 1) * outputs,
            nodes=nodes,
        )

    def copy(self, name: str, values: float, nodes: int) -> None:
        """Values moved to another layout: read and written once."""
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

    def normalise(self, name: str, rows: float, width: int) -> None:
        """Residual addition and layer normalisation in one sweep: two inputs, one output."""
        self.add(name, macs=0, values=3 * rows * width)

    def feed_forward(self, name: str, rows: float, width: int, inner: int) -> None:
        self.linear(f"{name}.up", rows, width, inner, nodes=2)
        self.add(f"{name}.activation", macs=0, values=2 * rows * inner)
        self.linear(f"{name}.down", rows, inner, width)
        self.normalise(f"{name}.norm", rows, width)


def operations(
    shape: ModelShape, size: WorkSize, *, weight_bytes: float = 4, value_bytes: float = 4
) -> list[Operation]:
    """All operations of one batch.

    Args:
        shape: the model.
        size: the batch; `target` counts decoding steps and must be at least 1 for translators.
        weight_bytes, value_bytes: bytes per stored weight and per computed value.

    Raises:
        InputError: a translator's batch without generated tokens, or sizes below 1.
    """
    if min(size.batch, size.source, size.beams) < 1:
        raise InputError(f"work of {size} cannot be counted; all its sizes must be at least 1")
    found: list[Operation] = []
    classifies = not get_task(shape.task).generates
    graph: Literal["model", "encoder"] = "model" if classifies else "encoder"
    once = _Counter(found, graph, 1, weight_bytes, value_bytes)
    _count_encoder(once, shape, size.batch, size.source)
    if classifies:
        for number, (inputs, outputs) in enumerate(shape.classifier):
            once.linear(f"classifier.{number}", size.batch, inputs, outputs)
        return found
    if size.target < 1:
        raise InputError(f"work of {size} cannot be counted; give the number of generated tokens")
    steps = _Counter(found, "decoder", size.target, weight_bytes, value_bytes)
    _count_decoder(steps, shape, size.batch * size.beams, size.source)
    return found


def _count_encoder(count: _Counter, shape: ModelShape, batch: float, source: float) -> None:
    rows, width, dim = batch * source, shape.width, shape.head_dim
    count.add("embedding", macs=0, values=2 * rows * shape.embedding)  # look up, write
    if shape.embedding != width:
        count.linear("embedding.projection", rows, shape.embedding, width)
    for number, heads in enumerate(shape.encoder_heads):
        name = f"encoder_self.{number}"
        if heads:
            inner = heads * dim
            count.linear(f"{name}.qkv", rows, width, 3 * inner, nodes=2)
            count.copy(f"{name}.split", 3 * rows * inner, nodes=7)
            count.attend(name, batch, heads, dim, source, source, masked=True)
            count.copy(f"{name}.merge", rows * inner, nodes=2)
            count.linear(f"{name}.output", rows, inner, width)
        count.normalise(f"{name}.norm", rows, width)
        count.feed_forward(f"encoder_ffn.{number}", rows, width, shape.encoder_ffn)
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
    for number, (own, cross) in enumerate(zip(shape.decoder_heads, shape.cross_heads, strict=True)):
        name, inner = f"decoder_self.{number}", own * dim
        if own:
            count.linear(f"{name}.qkv", rows, width, 3 * inner, nodes=2)
            count.copy(f"{name}.split", 3 * rows * inner, nodes=7)
            count.add(f"{name}.cache", 0, values=2 * rows * inner * (2 * past + 1), nodes=2)
            count.attend(name, rows, own, dim, 1, past + 1, masked=False)
            count.copy(f"{name}.merge", rows * inner, nodes=2)
            count.linear(f"{name}.output", rows, inner, width)
        count.normalise(f"{name}.norm", rows, width)
        name, inner = f"cross.{number}", cross * dim
        if cross:
            count.linear(f"{name}.query", rows, width, inner, nodes=2)
            count.copy(f"{name}.split", rows * inner, nodes=2)
            count.attend(name, rows, cross, dim, 1, source, masked=True)
            count.copy(f"{name}.merge", rows * inner, nodes=2)
            count.linear(f"{name}.output", rows, inner, width)
        count.normalise(f"{name}.norm", rows, width)
        count.feed_forward(f"decoder_ffn.{number}", rows, width, shape.decoder_ffn)
    count.linear("vocabulary", rows, width, shape.vocabulary)


def total_macs(work: Sequence[Operation]) -> float:
    """Multiply-adds of all operations in all runs."""
    return float(sum(operation.macs.sum() for operation in work))


def total_bytes(work: Sequence[Operation]) -> float:
    """Bytes moved by all operations in all runs."""
    return float(sum(operation.bytes.sum() for operation in work))


def roofline_seconds(work: Sequence[Operation], machine: Machine) -> float:
    """Least time of these operations, one after the other, on a machine."""
    combine = np.maximum if machine.runs_ahead else np.add
    seconds = 0.0
    for operation in work:
        rate = machine.stored_rate if operation.stored else machine.value_rate
        bound = np.maximum(operation.macs / rate, operation.bytes / machine.bandwidth)
        seconds += float(combine(bound, operation.nodes * machine.launch).sum())
    return seconds


def limit_of(
    dense: ModelShape,
    pruned: ModelShape,
    machine: Machine,
    sizes: Sequence[WorkSize],
    pruned_sizes: Sequence[WorkSize] | None = None,
) -> Limit:
    """The limit of the speed-up over these batches together.

    Args:
        dense, pruned: the two models.
        machine: measured rates, and the bytes per weight and value of the precision in use.
        sizes: the batches.
        pruned_sizes: the pruned model's batches where they differ (it stops at other lengths).

    Raises:
        InputError: no batches.
    """
    if not sizes:
        raise InputError("a limit over no batches is undefined; give at least one batch size")
    totals = []
    for shape, batches in ((dense, sizes), (pruned, pruned_sizes or sizes)):
        work = [operation for size in batches for operation in _run(shape, size, machine)]
        totals.append((roofline_seconds(work, machine), total_macs(work), total_bytes(work)))
    seconds, macs, moved = (before / after for before, after in zip(*totals, strict=True))
    return Limit(seconds, macs, moved)


def _run(shape: ModelShape, size: WorkSize, machine: Machine) -> list[Operation]:
    """What the runtime really runs: nobody reads the source if no cross-attention head is left."""
    work = operations(
        shape, size, weight_bytes=machine.weight_bytes, value_bytes=machine.value_bytes
    )
    if not get_task(shape.task).generates or any(shape.cross_heads):
        return work
    return [operation for operation in work if operation.graph == "decoder"]
