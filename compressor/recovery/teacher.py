"""The dense model as a teacher, which remembers its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.model.architectures import architecture_of
from compressor.model.memory import all_bytes
from compressor.model.modes import record_inputs
from compressor.model.sublayers import Sublayer
from compressor.parallel import sharding
from compressor.recovery.hidden_states import block_tokens, outputs_of
from compressor.tasks import Batch, Objective
from compressor.tasks.batching import chosen
from compressor.training.data import batches_of_rank
from compressor.training.text import BLOCK_ROWS, Text

LEAST_ROOM = 2**31  # bytes of the cache, over all ranks, also on small machines
_READ_BLOCKS = 32  # of text at a time


@dataclass(frozen=True)
class TeacherOutputs:
    """The teacher's outputs for some rows: all that its predictions are computed from again."""

    # The input of its logits [loss terms, width] (float16 in the cache), or a classifier's logits.
    read: Tensor
    # The residual stream after each block, [real tokens, width] each; bfloat16 in the cache, with
    # an error of at most 0.4 %, far below that of a pruned model.
    hidden: tuple[Tensor, ...]

    @property
    def bytes(self) -> int:
        """The memory that the tensors take, in bytes."""
        return sum(x.numel() * x.element_size() for x in (self.read, *self.hidden))

    def to(self, device: torch.device | str) -> TeacherOutputs:
        """A copy that shares no memory with other rows."""
        read, *hidden = (x.to(device, copy=True) for x in (self.read, *self.hidden))
        return TeacherOutputs(read, tuple(hidden))


class Teacher:
    """The dense model, with a cache of its outputs for whole rows.

    For a translator it keeps the last hidden states, which the output projection reads, since
    logits are a vocabulary wide; for a classifier it keeps the logits. The cache takes a quarter of
    the device's memory; on a CPU as much as the model's weights on this rank or `LEAST_ROOM`, if
    that is more. Outputs for other rows are computed each time.

    Args:
        dense: in evaluation mode, on the device of the batches; not changed.
        task: computes logits and predictions.
        batches: the rows to cache, in this order while they fit. Each rank computes its own rows,
            and gets those of all others; if the model is sharded, all ranks have as many batches.
        blocks: a sublayer of each layer whose hidden states are asked for.
    """

    @torch.no_grad()
    def __init__(
        self,
        dense: nn.Module,
        task: Objective,
        batches: Iterable[Batch],
        blocks: Sequence[Sublayer] = (),
    ) -> None:
        self.dense = dense
        self.task = task
        self.blocks = blocks
        self.projection: nn.Module | None = dense.get_output_embeddings()  # type: ignore[operator]
        self.kept: dict[int, TeacherOutputs] = {}  # by row
        device = next(dense.parameters()).device
        room = (all_bytes(str(device)) or 0) // 4
        if device.type == "cpu":  # ranks may share its memory, and each keeps all rows
            room = max(room // parallel.size(), sharding.local_bytes(dense), LEAST_ROOM)
        self.memory_left = room // parallel.size()
        for batch in batches:
            if sharding.on_all_ranks(not self.memory_left):
                break
            self._cache(batch.to(device), self.kept)
        self.kept = _gather_outputs(self.kept, device)

    @torch.no_grad()
    def cache_text(
        self, text: Text, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> int:
        """Cache outputs for the rows of a text, unless less than half of them would fit.

        Args:
            text: whose rows are read in order.
            progress: called with (rows done, total rows).

        Returns:
            How many of its rows are cached.
        """
        device = next(self.dense.parameters()).device
        blocks, before = -(-text.rows // BLOCK_ROWS), self.memory_left
        cached: dict[int, TeacherOutputs] = {}
        for first in range(0, blocks, _READ_BLOCKS):
            rows = text.read(range(first, min(first + _READ_BLOCKS, blocks)))
            for batch in batches_of_rank(self.task, rows, self.dense, str(device)):
                self._cache(batch.to(device), cached)
            if first == 0:
                kept = max(1, parallel.total(len(cached)))
                needed = parallel.total(before - self.memory_left) * text.rows / kept
                if needed > 2 * parallel.total(before):
                    return 0
            if parallel.total(int(not self.memory_left)):
                break
            progress(min(text.rows, (first + _READ_BLOCKS) * BLOCK_ROWS), text.rows)
        gathered = _gather_outputs(cached, device)
        self.kept |= gathered
        return len(gathered)

    @torch.no_grad()
    def outputs(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The teacher's outputs for a batch, from the cache as far as it has them.

        Args:
            batch: on the device.

        Returns:
            Predictions in float32, [loss terms, classes], or tokens or the width of an embedding in
            place of classes; and the hidden states after each block, [real tokens, width].
        """
        known = [row in self.kept for row in batch.rows]
        # With a sharded model, all ranks read all rows from the cache, or all compute all rows.
        if not sharding.on_all_ranks(all(known)) and (parallel.shards() or not any(known)):
            logits, computed = self._compute(batch)
            return self.task.predictions(logits), computed.hidden
        rows = [self.kept[row] for row in batch.rows if row in self.kept]
        with torch.autocast(rows[0].read.device.type, enabled=False):  # has no float16 on CPUs
            read = torch.cat([row.read for row in rows])
        logits = read.float()
        if self.projection is not None:
            bias = architecture_of(self.dense).logits_bias
            with sharding.outer_weights(self.dense):
                logits = self.projection(logits)
            logits = logits if bias is None else logits + getattr(self.dense, bias)
        hidden = tuple(torch.cat(parts) for parts in zip(*(x.hidden for x in rows), strict=True))
        if not all(known):
            others = batch.host.lines([i for i, x in enumerate(known) if not x])
            missing, computed = self._compute(others.to(logits.device))
            logits = _merged(known, logits, missing, _per_row(self.task.term_mask(batch.host)))
            hidden = tuple(
                _merged(known, old, new, _per_row(self._tokens(batch.host, block)))
                for block, old, new in zip(self.blocks, hidden, computed.hidden, strict=True)
            )
        return self.task.predictions(logits), hidden

    def _cache(self, batch: Batch, kept: dict[int, TeacherOutputs]) -> None:
        """Cache rows while they fit; hidden states in bfloat16, so that twice as many fit."""
        _, computed = self._compute(batch)
        if batch.spare:
            return
        host = batch.host
        terms = _per_row(self.task.term_mask(host))
        tokens = [_per_row(self._tokens(host, block)) for block in self.blocks]
        hidden = [x.bfloat16().split(n) for x, n in zip(computed.hidden, tokens, strict=True)]
        read = computed.read if self.projection is None else _to_half(computed.read)
        # Views of the batch's tensors, unless some rows do not fit.
        rows = [
            TeacherOutputs(x, tuple(states))
            for x, *states in zip(read.split(terms), *hidden, strict=True)
        ]
        for count, (row, outputs) in enumerate(zip(batch.rows, rows, strict=True)):
            if outputs.bytes > self.memory_left:
                self.memory_left = 0
                kept.update({row: kept[row].to(read.device) for row in batch.rows[:count]})
                return
            self.memory_left -= outputs.bytes
            kept[row] = outputs

    def _tokens(self, host: Batch, block: Sublayer) -> Tensor:
        return block_tokens(self.task, host, self.dense, block)

    def _compute(self, batch: Batch) -> tuple[Tensor, TeacherOutputs]:
        """Run the dense model: logits [loss terms, classes or vocabulary], and what to cache."""
        with record_inputs(self.projection) as read:
            logits, states = outputs_of(self.dense, self.task, batch, self.blocks)
        terms = chosen(read[-1], self.task.term_mask(batch.host)) if read else logits
        return logits, TeacherOutputs(terms, tuple(states))


def _to_half(states: Tensor) -> Tensor:
    """Tensors in float16; unchanged if that changes a value by over 0.1 % of the largest."""
    half = states.half()
    if not states.numel():
        return half
    most = (half.to(states.dtype) - states).abs().max()
    return half if bool(most <= 1e-3 * states.abs().max()) else states


def _merged(known: list[bool], kept: Tensor, computed: Tensor, counts: list[int]) -> Tensor:
    """Values of all rows in order, from those of the `known` rows and those of the others.

    Args:
        known: for each row of the batch, whether it was in the cache.
        kept: values of the known rows, one after the other.
        computed: values of the other rows, one after the other.
        counts: number of values of each row.
    """
    parts = {
        is_known: iter(x.split([n for n, k in zip(counts, known, strict=True) if k == is_known]))
        for is_known, x in ((True, kept), (False, computed))
    }
    return torch.cat([next(parts[is_known]) for is_known in known])


def _gather_outputs(
    cached: dict[int, TeacherOutputs], device: torch.device
) -> dict[int, TeacherOutputs]:
    """The cached outputs of all ranks, by row, on the device."""
    if parallel.size() == 1:
        return cached
    ranks = parallel.gather({row: outputs.to("cpu") for row, outputs in cached.items()})
    return {row: outputs.to(device) for rows in ranks for row, outputs in rows.items()}


def _per_row(mask: Tensor) -> list[int]:
    """Number of set values of each row of a mask."""
    counts: list[int] = mask.reshape(len(mask), -1).sum(-1).tolist()
    return counts
