"""The dense model as a teacher that reads every row once, however many epochs the student needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compressor import parallel
from compressor.model.architectures import architecture_of
from compressor.model.modes import received
from compressor.model.sublayers import Sublayer
from compressor.parallel import sharding
from compressor.recovery.hidden_states import observed, states_of
from compressor.tasks import Batch, Objective
from compressor.tasks.batching import chosen, gpu_bytes
from compressor.training.data import batches_of_rank
from compressor.training.text import BLOCK_ROWS, Text

LEAST_ROOM = 2**30  # bytes for what is kept, of all ranks, however small the model
_READ_BLOCKS = 32  # of text at a time


@dataclass(frozen=True)
class Lesson:
    """What the dense model computes for a batch.

    Args:
        read: what its logits are made from, [loss terms, width]: a translator's last hidden
            states (of rows that are kept in float16), a classifier's logits.
        hidden: the residual stream after each block, [real tokens, width] each; of rows that are
            kept in bfloat16, 0.4 % off at most, far less than a pruned model's.
    """

    read: Tensor
    hidden: tuple[Tensor, ...]

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return sum(x.numel() * x.element_size() for x in (self.read, *self.hidden))

    def to(self, device: torch.device | str) -> Lesson:
        """A copy on a device, without the tensors of other rows that it may share memory with."""
        read, *hidden = (x.to(device, copy=True) for x in (self.read, *self.hidden))
        return Lesson(read, tuple(hidden))


class Teacher:
    """What the dense model computes for rows that come again in every epoch.

    Of a translator it keeps what the output projection reads, the last hidden states: the logits
    themselves are a vocabulary wide. Of a classifier it keeps the logits. Where hidden states are
    matched, it keeps those of all blocks as well. As much is kept as the model's own weights take
    on this rank, or `LEAST_ROOM`, or on a GPU a quarter of its memory: whole rows in the order of
    `batches`, then those of a text if half of it fits. Other rows are computed each time.

    Args:
        dense: in evaluation mode, on the device where batches will be; not changed.
        task: its task (see `compressor.tasks`).
        batches: the rows that will come, as few or as many in a batch as is efficient, in step
            if it is sharded; of several ranks each computes its own, and gets what the others keep.
        blocks: whose hidden states are asked for.
    """

    @torch.no_grad()
    def __init__(
        self,
        dense: nn.Module,
        task: Objective,
        batches: Iterable[Batch],
        blocks: Sequence[Sublayer] = (),
    ) -> None:
        self.dense, self.task, self.blocks = dense, task, blocks
        self.projection: nn.Module | None = dense.get_output_embeddings()  # type: ignore[operator]
        self.kept: dict[int, Lesson] = {}  # by row
        device = next(dense.parameters()).device
        self.memory_left = _room(dense, device) // parallel.size()
        for batch in batches:
            if sharding.everywhere(not self.memory_left):
                break
            self._remember(batch.to(device), self.kept)
        self.kept = _of_all_ranks(self.kept, device)

    @torch.no_grad()
    def remember_text(
        self, text: Text, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        """Keep what the dense model computes for the rows of a text, as far as memory is left.

        Of less than half of the text nothing is kept: reading it would take long and gain little,
        or nothing where training ends before a second epoch. The first rows tell how much fits.

        Args:
            progress: called with (rows done, rows in all).
        """
        device = next(self.dense.parameters()).device
        blocks, found, before = -(-text.rows // BLOCK_ROWS), dict[int, Lesson](), self.memory_left
        for first in range(0, blocks, _READ_BLOCKS):
            rows = text.read(range(first, min(first + _READ_BLOCKS, blocks)))
            for batch in batches_of_rank(self.task, rows, self.dense, str(device)):
                self._remember(batch.to(device), found)
            if first == 0:
                kept = max(1, parallel.total(len(found)))
                needed = parallel.total(before - self.memory_left) * text.rows / kept
                if needed > 2 * parallel.total(before):
                    return
            if parallel.total(int(not self.memory_left)):
                break
            progress(min(text.rows, (first + _READ_BLOCKS) * BLOCK_ROWS), text.rows)
        self.kept |= _of_all_ranks(found, device)

    @torch.no_grad()
    def answers(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Predictions as `Objective` has them, and the hidden states after each block.

        Returns:
            [loss terms, classes, vocabulary or width], float32, in the order of the batch;
            [tokens, width] of each block's real tokens, row by row.
        """
        known = [row in self.kept for row in batch.rows]
        # Ranks that compute a sharded model together read all of their rows, or none.
        if not sharding.everywhere(all(known)) and (parallel.shards() or not any(known)):
            logits, lesson = self._compute(batch)
            return self.task.predictions(logits), lesson.hidden
        rows = [self.kept[row] for row in batch.rows if row in self.kept]
        with torch.autocast(rows[0].read.device.type, enabled=False):  # knows no float16 on CPUs
            read = torch.cat([row.read for row in rows])
        logits = self._project(read.float())
        hidden = tuple(torch.cat(parts) for parts in zip(*(x.hidden for x in rows), strict=True))
        if not all(known):
            others = batch.host.lines([i for i, x in enumerate(known) if not x])
            missing, lesson = self._compute(others.to(logits.device))
            logits = _merged(known, logits, missing, _per_row(self.task.term_mask(batch.host)))
            hidden = tuple(
                _merged(known, old, new, _per_row(self.task.token_mask(batch.host, block.kind)))
                for block, old, new in zip(self.blocks, hidden, lesson.hidden, strict=True)
            )
        return self.task.predictions(logits), hidden

    def _remember(self, batch: Batch, kept: dict[int, Lesson]) -> None:
        """Keep rows while there is room; hidden states in bfloat16, so that twice as many fit."""
        _, lesson = self._compute(batch)
        if batch.spare:
            return
        host = batch.host
        terms = _per_row(self.task.term_mask(host))
        tokens = [_per_row(self.task.token_mask(host, block.kind)) for block in self.blocks]
        hidden = [x.bfloat16().split(n) for x, n in zip(lesson.hidden, tokens, strict=True)]
        read = lesson.read if self.projection is None else _shortened(lesson.read)
        # Parts of the batch's tensors, which hold nothing else.
        rows = [
            Lesson(x, tuple(states)) for x, *states in zip(read.split(terms), *hidden, strict=True)
        ]
        for count, (row, own) in enumerate(zip(batch.rows, rows, strict=True)):
            if own.bytes > self.memory_left:
                self.memory_left = 0
                kept.update({row: kept[row].to(read.device) for row in batch.rows[:count]})
                return
            self.memory_left -= own.bytes
            kept[row] = own

    def _compute(self, batch: Batch) -> tuple[Tensor, Lesson]:
        """One pass of the dense model: logits [loss terms, vocabulary or classes], and the rest."""
        with received(self.projection) as read, observed(self.dense, self.blocks) as found:
            logits = self.task.logits(self.dense, batch)
        terms = self.task.term_mask(batch.host)
        states = tuple(states_of(found, self.blocks, self.task, batch))
        return chosen(logits, terms), Lesson(chosen(read[-1] if read else logits, terms), states)

    def _project(self, read: Tensor) -> Tensor:
        if self.projection is None:
            return read
        bias = architecture_of(self.dense).logits_bias
        with sharding.outer_weights(self.dense):
            logits: Tensor = self.projection(read)
        return logits if bias is None else logits + getattr(self.dense, bias)


def _room(dense: nn.Module, device: torch.device) -> int:
    """Bytes that may be kept, of all ranks."""
    if device.type == "cuda":
        return gpu_bytes(str(device)) // 4
    return max(sharding.bytes_held(dense), LEAST_ROOM)


def _shortened(states: Tensor) -> Tensor:
    """In float16; as they are, if that changes one by over 0.1 % of the largest."""
    short = states.half()
    if not states.numel():
        return short
    most = (short.to(states.dtype) - states).abs().max()
    return short if bool(most <= 1e-3 * states.abs().max()) else states


def _merged(known: list[bool], kept: Tensor, computed: Tensor, counts: list[int]) -> Tensor:
    """Numbers of all rows in order, from those of the `known` rows and those of the others.

    Args:
        counts: of every row.
    """
    parts = {
        so: iter(x.split([n for n, k in zip(counts, known, strict=True) if k == so]))
        for so, x in ((True, kept), (False, computed))
    }
    return torch.cat([next(parts[so]) for so in known])


def _of_all_ranks(own: dict[int, Lesson], device: torch.device) -> dict[int, Lesson]:
    """What all ranks have kept, by row."""
    if parallel.size() == 1:
        return own
    every = parallel.gather({row: lesson.to("cpu") for row, lesson in own.items()})
    return {row: lesson.to(device) for lessons in every for row, lesson in lessons.items()}


def _per_row(mask: Tensor) -> list[int]:
    counts: list[int] = mask.reshape(len(mask), -1).sum(-1).tolist()
    return counts
