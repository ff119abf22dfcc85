"""A decoder whose state stays on the device, for `compressor.export.device_step`'s graphs.

Each step reads and writes the same buffers, of sizes that are rounded up to a few classes. So a GPU
replays a step as a CUDA graph, and the token that it chose is already where the next step reads it:
greedy search runs several steps before it looks at what was chosen. Rows that fill a class up
decode the first source again; their outputs are ignored.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.batching import Batch
from compressor.runtime.device_buffers import (
    ADDED,
    FILLED,
    SOURCE_LENGTHS,
    Buffers,
    DeviceGraph,
)
from compressor.runtime.generation import Generation
from compressor.runtime.processors import Scores, Tokens, apply_rules, forced_tokens

# Sizes are powers of two from here on: few enough that each is captured once.
LEAST_SOURCE, LEAST_ROOM = 16, 32
# Steps of greedy search between two looks at the tokens. A look waits for the GPU and copies:
# about a tenth of a captured step, an estimate that no GPU has confirmed. Steps behind the last
# row's end, 1.5 in the mean, are lost.
STEPS_AT_ONCE = 4


def size_class(size: int, least: int = 1) -> int:
    """The power of two that `size` is rounded up to."""
    return int(max(least, 1 << (size - 1).bit_length()))


class DeviceDecoder:
    """One batch being decoded; a `search.Decoder`, which greedy search can leave to itself.

    It is also the `search.RankedStep` that it ran last.

    Args:
        graph: of the step.
        batch: padded on the right.
        pad: token of padding.
        most_source: tokens that sources are cut to; batches are padded to no more.
    """

    def __init__(self, graph: DeviceGraph, batch: Batch, pad: int, most_source: int) -> None:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        source = max(ids.shape[1], min(size_class(ids.shape[1], LEAST_SOURCE), most_source))
        rows = size_class(len(ids))
        self._graph = graph
        self._lengths = mask.sum(axis=1).astype(np.int32)
        self._position, self._room, self._side = 0, LEAST_ROOM, 0
        self.scored = graph.scored
        self._added = np.zeros(graph.scored, graph.float)
        self._take(graph.acquire(rows, source), len(ids))
        if graph.cross:
            whole = {
                "input_ids": _filled_up(ids, rows, source, pad),
                "attention_mask": _filled_up(mask, rows, source, 0),
            }
            graph.encode(self._block, whole)

    def step(self, tokens: Tokens) -> DeviceDecoder:
        self.feed(tokens)
        self._make_room(1)
        self._graph.run(self._step)
        self._position += 1
        return self

    def best(self) -> Tokens:
        best: Tokens = self._block.values["input_ids"].numpy()[: self.rows, 0]
        return best.copy()  # the next step reads its tokens there

    def scores(self) -> Scores:
        logits: Scores = self._block.values["logits"].numpy()[: self.rows]
        return logits.astype(np.float32, copy=False)

    def top(self, count: int) -> tuple[Scores, Tokens]:
        logits = self._block.values["logits"]
        values, tokens = self._graph.top(logits, min(count, self.scored))
        return values[: self.rows], tokens[: self.rows]

    def feed(self, tokens: Tokens) -> None:
        """The tokens [rows] that the next step reads, in place of those that the last one chose."""
        self._tokens = tokens
        self._write("input_ids", tokens[:, None])

    def add(self, added: Scores) -> None:
        """Add numbers to the logits of all rows [tokens] from now on; -inf excludes a token."""
        self._added = added.astype(self._graph.float)
        self._block.values[ADDED].update_inplace(self._added)

    def run(self, steps: int) -> Tokens:
        """Append the best token to every row, `steps` times.

        Returns:
            The tokens [rows, steps].
        """
        self._make_room(steps)
        for step in range(steps):
            self._graph.run(self._step, wait=step == steps - 1)
        start = self._position + 1
        self._position += steps
        chosen: Tokens = self._step.history.numpy()[: self.rows, start : start + steps]
        self._tokens = chosen[:, -1]
        return chosen

    def is_smaller(self, rows: int) -> bool:
        """Whether so many rows fit into smaller buffers."""
        return size_class(rows) < self._block.rows

    def reorder(self, rows: Tokens) -> None:
        # Cross-attention stays as it is: rows that change places have the same source.
        if np.array_equal(rows, np.arange(len(rows))):
            return
        self._block.moved.update_inplace(_filled_up(rows, self._block.rows))
        before = self._step
        self._side = 1 - self._side
        self._use_step()
        self._graph.move(before, self._step, self._block)

    def keep(self, rows: Tokens) -> None:
        block, step, release = self._block, self._step, self._release
        self._lengths = self._lengths[rows]
        self._tokens = self._tokens[rows]
        self._side = 0
        self._take(self._graph.acquire(size_class(len(rows)), block.source), len(rows))
        taken = _filled_up(rows, self._block.rows)
        self._graph.copy(block, step, taken, self._block, self._step)
        self.feed(self._tokens)
        release()

    def _take(self, block: Buffers, rows: int) -> None:
        """Decode in other buffers, without their caches."""
        self._block, self.rows = block, rows
        self._release = weakref.finalize(self, self._graph.release, block)
        self._release.atexit = False
        if self._graph.reads_source:
            self._write(SOURCE_LENGTHS, self._lengths)
        block.values[ADDED].update_inplace(self._added)
        self._step, _ = self._graph.step(block, self._room, self._side)
        self._write_position()

    def _make_room(self, steps: int) -> None:
        """Move the caches to longer ones if the next steps do not fit."""
        if self._position + steps <= self._room:
            return
        before, slots = self._step, 2 * self._room
        kept = np.minimum(np.arange(slots), self._room - 1)
        self._room = slots
        self._use_step()
        self._graph.lengthen(before, self._step, kept)

    def _use_step(self) -> None:
        """Change to the step of the present room and side."""
        self._step, new = self._graph.step(self._block, self._room, self._side)
        if new:
            self._write_position()
            self.feed(self._tokens)

    def _write_position(self) -> None:
        self._block.values["position"].update_inplace(np.array([self._position]))
        filled = np.full(self._block.rows, self._position, np.int32)
        self._block.values[FILLED].update_inplace(filled)

    def _write(self, name: str, array: NDArray[Any]) -> None:
        self._block.values[name].update_inplace(_filled_up(array, self._block.rows))


def _filled_up(
    array: NDArray[Any], rows: int, columns: int | None = None, padding: int = 0
) -> NDArray[Any]:
    """As many rows and columns as buffers have: rows repeat the first one."""
    if columns is not None:
        array = np.pad(array, ((0, 0), (0, columns - array.shape[1])), constant_values=padding)
    return np.concatenate([array, np.repeat(array[:1], rows - len(array), axis=0)])


def greedy_on_device(decoder: DeviceDecoder, settings: Generation) -> list[list[int]]:
    """`search.greedy` with the tokens chosen on the device, several steps at a time.

    No rule of the settings may look at the tokens of a row.
    """
    rows, limit = decoder.rows, settings.limit
    tokens = np.zeros((rows, limit), np.int64)
    lengths = np.full(rows, limit)  # rows go on after their end until they leave
    live = np.arange(rows)  # output row of each row of the decoder
    decoder.feed(np.full(rows, settings.decoder_start_token_id))
    step, phase = 1, None
    while step <= limit:
        if _phase(settings, step) != phase:
            phase = _phase(settings, step)
            decoder.add(_added(settings, step, decoder.scored))
        steps = 1
        while (
            steps < STEPS_AT_ONCE
            and step + steps <= limit
            and _phase(settings, step + steps) == phase
        ):
            steps += 1
        chosen = decoder.run(steps)  # [rows, steps]
        tokens[live, step - 1 : step - 1 + steps] = chosen
        ended = np.isin(chosen, settings.eos_token_id)
        first = np.where(ended.any(axis=1), step + ended.argmax(axis=1), limit)
        lengths[live] = np.minimum(lengths[live], first)
        step += steps
        going = lengths[live] >= step
        if not going.any():
            break
        if step <= limit and decoder.is_smaller(int(going.sum())):
            decoder.keep(np.flatnonzero(going))
            live = live[going]
    return [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)]


def _phase(settings: Generation, step: int) -> tuple[bool, list[int] | None]:
    """The part of the rules that changes between steps, without those that look at tokens."""
    return step < settings.min_length, forced_tokens(settings, step)


def _added(settings: Generation, step: int, scored: int) -> Scores:
    """Scores of zero [tokens] after the rules: -inf for tokens that must not follow."""
    scores = np.zeros((1, scored), np.float32)
    tokens = np.full((1, step), settings.decoder_start_token_id)
    # Log-probabilities have the order of the logits, so these need not be normalized.
    apply_rules(replace(settings, renormalize_logits=False), scores, tokens)
    if forced_tokens(settings, step) is not None:
        # The tokens that are forced have equal scores, so the first one is the best.
        scores[0, scores[0].argmax() + 1 :] = -np.inf
    return scores[0]
