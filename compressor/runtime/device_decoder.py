"""A decoder whose state stays on the device, for `compressor.export.device_step`'s graphs.

Each step reads and writes the same buffers, of a few sizes, so a GPU replays it as a CUDA graph,
and finds the token that the last one chose: greedy search runs several steps at once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.batching import Batch, require_right_padding
from compressor.runtime.capture import UNCAPTURED, Captured, capture, numbered
from compressor.runtime.decoder import FLOATS, DecoderGraph
from compressor.runtime.engines import Setup
from compressor.runtime.graph_names import (
    ADDED,
    BEST,
    COUNT,
    FILLED,
    HISTORY,
    LENGTHEN,
    NORMALIZER,
    ROOM,
    ROWS,
    SELECT_CACHES,
    SELECT_PAST,
    SLOTS,
    TOP,
    TOP_TOKENS,
    TOP_VALUES,
    after,
    lengthened,
    present,
    selected,
    source_mask,
)
from compressor.runtime.search import Scores, Tokens
from compressor.runtime.session import bind, size_of

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue, RunOptions


# Sizes are powers of two from here on: few enough that each is captured once.
LEAST_SOURCE, LEAST_ROOM = 16, 32
# CUDA graphs of a session, which keep their memory as long; more shapes run without one.
MOST_CAPTURED = 256
# Buffers of batches that are done wait for others of their size, up to this much of them.
MOST_KEPT_BYTES = 4 << 30


def mask_of(lengths: NDArray[np.int32], heads: int, source: int) -> NDArray[np.int32]:
    """The mask of sources in the form for CUTLASS's kernel.

    Behind the lengths is where each row's query begins, and where its keys do. Those of its heads
    are one behind the other.

    Args:
        lengths: of the sources, [rows].
        heads: of the cross-attention.
        source: tokens that the sources are padded to.

    Returns:
        [3 x rows + 2].
    """
    rows = np.arange(len(lengths) + 1, dtype=np.int32)
    return np.concatenate([lengths, rows, rows * np.int32(heads * source)])


@dataclass
class BoundStep:
    """One binding of the step: caches of one length, and one of two sides for moved rows."""

    past: Mapping[str, OrtValue]
    history: OrtValue
    binding: IOBinding
    replayed: Sequence[RunOptions]  # run and wait for the end; run on
    moves: IOBinding | None = None  # of rows to the other side


@dataclass(eq=False)
class Buffers:
    """The buffers of a number of rows and a length of sources, and what is bound to them."""

    rows: int
    source: int
    inputs: Mapping[str, OrtValue]  # of the encoder
    cross: Mapping[str, OrtValue]  # its outputs, keys and values of the cross-attention
    encoding: IOBinding
    values: Mapping[str, OrtValue]  # of the step, by the name of the input or output
    moved: OrtValue  # numbers of rows [rows]
    bytes: int  # of all buffers, those of the steps included
    encoded: RunOptions | None = None  # of runs of the encoder, once it has run
    steps: dict[tuple[int, int], BoundStep] = field(default_factory=dict)  # by room and side


class DeviceGraph(DecoderGraph):
    """A `DecoderGraph` with buffers that the steps of batches are bound to.

    Args:
        open_graph: opens the graph with a role, and so that its runs can be captured if told to.
        setup: what is opened.
    """

    further = (LENGTHEN, TOP)

    def __init__(self, open_graph: Callable[[str, bool], InferenceSession], setup: Setup) -> None:
        super().__init__(open_graph, setup)
        # Rows and source tokens of the encoder's; also the room, of the decoder's.
        self.captured: list[Captured] = []
        self._numbers = count(1)  # one that could not be captured is not used again
        heads = {self.inputs[name].shape[1] for name in self.cross}
        self.masks = {source_mask(number): number for number in heads}
        self.float = FLOATS[self.inputs[ADDED].type]
        self._free: list[Buffers] = []
        # Not a `Lock`: what is collected while one thread holds it may release its buffers, too.
        self._lock = threading.RLock()

    def start(self, batch: Batch, always: Sequence[int] | None = None) -> DeviceDecoder:
        """Run the encoder on a padded batch.

        Args:
            batch: `input_ids` and `attention_mask`, [rows, source].
            always: not read, since all tokens are scored.

        Returns:
            The decoder before its first step.

        Raises:
            UsageError: rows are padded on the left.
        """
        require_right_padding(batch["attention_mask"])
        artifact = self.setup.artifact
        return DeviceDecoder(self, batch, artifact.pad_token_id, artifact.max_source_tokens)

    def acquire(self, rows: int, source: int) -> Buffers:
        """Buffers for exclusive use, for so many rows and source tokens."""
        with self._lock:
            for block in self._free:
                if (block.rows, block.source) == (rows, source):
                    self._free.remove(block)
                    return block
        ones = np.ones((rows, source), np.int64)
        inputs = {name: self.value(ones.copy()) for name in ("input_ids", "attention_mask")}
        cross = self.caches(self.cross, rows, source)
        values = {
            "input_ids": self.value(np.zeros((rows, 1), np.int64)),
            "position": self.value(np.zeros(1, np.int64)),
            FILLED: self.value(np.zeros(rows, np.int32)),
            ADDED: self.value(np.zeros(self.scored, self.float)),
            "logits": self.value(np.zeros((rows, self.scored), self.float)),
        }
        values |= {name: self.value(np.zeros(3 * rows + 2, np.int32)) for name in self.masks}
        held = [*inputs.values(), *cross.values(), *values.values()]
        encoding, moved = bind(self.encoder, inputs, cross), self.value(np.arange(rows))
        return Buffers(rows, source, inputs, cross, encoding, values, moved, size_of(held))

    def release(self, block: Buffers) -> None:
        """Keep buffers for another batch, if not too many are kept already."""
        with self._lock:
            kept = sum(other.bytes for other in self._free)
            if kept + block.bytes <= MOST_KEPT_BYTES:
                self._free.append(block)

    def step(self, block: Buffers, room: int, side: int) -> tuple[BoundStep, bool]:
        """The step over caches of a length, bound to a block of buffers.

        Args:
            block: the buffers.
            room: tokens that the caches have room for.
            side: 0 or 1: which of the two caches that rows are moved between.

        Returns:
            The step, and whether it ran to be captured: its position is then any.
        """
        if (room, side) in block.steps:
            return block.steps[room, side], False
        past = self.caches(self.past, block.rows, room)
        history = self.value(np.zeros((block.rows, room + 1), np.int64))
        inputs = {**block.values, **block.cross, **past, HISTORY: history}
        logits = inputs.pop("logits")
        # The length is read on the CPU, when the step is captured.
        length = self.value(np.array([room], np.int32), "cpu")
        outputs = {"logits": logits} | {present(name): value for name, value in past.items()}
        outputs |= {after(name): inputs[name] for name in ("position", FILLED, HISTORY)}
        binding = bind(self.session, {**inputs, ROOM: length}, outputs)
        # The best token goes where the next step reads it, in another shape.
        tokens = inputs["input_ids"].data_ptr()
        binding.bind_output(BEST, self.device, 0, np.int64, [block.rows], tokens)
        # To capture a step onnxruntime runs it several times, so this must be none that counts; nor
        # may it count on from where an earlier batch, or full caches, ended: beyond these caches.
        block.values["position"].update_inplace(np.zeros(1, np.int64))
        block.values[FILLED].update_inplace(np.zeros(block.rows, np.int32))
        shape, kept = (block.rows, block.source, room), (*past.values(), history)
        replayed = self._first_run(self.session, binding, shape, kept)
        block.bytes += size_of(kept)
        block.steps[room, side] = BoundStep(past, history, binding, replayed)
        return block.steps[room, side], True

    def run(self, step: BoundStep, wait: bool = True) -> None:
        """Run one step; `wait` for its end, so that its outputs can be read."""
        self.session.run_with_iobinding(step.binding, step.replayed[0 if wait else 1])

    def encode(self, block: Buffers) -> None:
        """Run the encoder over the inputs in its buffers."""
        if block.encoded is not None:
            self.encoder.run_with_iobinding(block.encoding, block.encoded)
            return
        shape, held = (block.rows, block.source), [*block.inputs.values(), *block.cross.values()]
        block.encoded, _ = self._first_run(self.encoder, block.encoding, shape, held)

    def _first_run(
        self,
        session: InferenceSession,
        binding: IOBinding,
        shape: tuple[int, ...],
        values: Iterable[OrtValue],
    ) -> tuple[RunOptions, RunOptions]:
        """Run for the first time, captured if the session's runs are.

        Returns:
            Options of runs that wait for the end, and of runs that do not.
        """
        captures = session in self.captures and len(self.captured) < MOST_CAPTURED
        wanted = next(self._numbers) if captures else UNCAPTURED
        role = "encoder" if session is self.encoder else "decoder"
        number = capture(session, binding, wanted, role, self.setup.directory)
        waiting, going_on = numbered(number), numbered(number)
        if number != UNCAPTURED:
            self.captured.append(Captured(shape, size_of(values)))
            # Replayed graphs stay in order; other runs may take each other's memory.
            going_on.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return waiting, going_on


def size_class(size: int, least: int = 1) -> int:
    """The power of two that `size` is rounded up to."""
    return int(max(least, 1 << (size - 1).bit_length()))


class DeviceDecoder:
    """One batch being decoded, in buffers that stay on the device.

    Args:
        graph: the decoder.
        batch: `input_ids` and `attention_mask`, [rows, source], padded on the right.
        pad: the padding token.
        most_source: tokens that sources are padded to at most.
    """

    def __init__(self, graph: DeviceGraph, batch: Batch, pad: int, most_source: int) -> None:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        source = max(ids.shape[1], min(size_class(ids.shape[1], LEAST_SOURCE), most_source))
        rows = size_class(len(ids))
        self._graph = graph
        self._lengths = mask.sum(axis=1).astype(np.int32)
        self._position = 0
        self._room = LEAST_ROOM
        self._side = 0
        self.scored = graph.scored
        self._added = np.zeros(graph.scored, graph.float)
        self._take(graph.acquire(rows, source), len(ids))
        if graph.cross:
            inputs, padding = self.block.inputs, ((0, 0), (0, source - ids.shape[1]))
            for name, array, fill in (("input_ids", ids, pad), ("attention_mask", mask, 0)):
                wide = np.pad(array, padding, constant_values=fill)
                inputs[name].update_inplace(_filled_up(wide, rows))
            graph.encode(self.block)

    def step(self, tokens: Tokens) -> None:
        """Append one token to each row, and wait for the end of the step."""
        self.feed(tokens)
        self._make_room(1)
        self._graph.run(self._step)
        self._position += 1

    def best(self) -> Tokens:
        """The next token with the largest logit in each row, which the step has chosen."""
        # A copy: the next step reads its tokens there.
        return np.array(self.block.values["input_ids"].numpy()[: self.rows, 0])

    def scores(self) -> Scores:
        """Logits of the next token, in float32."""
        return np.asarray(self.block.values["logits"].numpy()[: self.rows], np.float32)

    def top(self, count: int) -> tuple[Scores, Tokens]:
        """The best next tokens of each row, chosen on the device."""
        number = self._graph.value(np.array([min(count, self.scored)]), "cpu")
        inputs = {"logits": self.block.values["logits"], COUNT: number}
        on_host = dict.fromkeys((TOP_VALUES, TOP_TOKENS, NORMALIZER), "cpu")
        outputs = self._graph.run_small(TOP, inputs, on_host)
        values, tokens, normalizer = (value.numpy() for value in outputs)
        return (values - normalizer)[: self.rows], tokens[: self.rows]

    def feed(self, tokens: Tokens) -> None:
        """The tokens [rows] that the next step reads, in place of those that the last one chose."""
        self._tokens = tokens
        filled_up = _filled_up(tokens[:, None], self.block.rows)
        self.block.values["input_ids"].update_inplace(filled_up)

    def add(self, added: Scores) -> None:
        """Add numbers to the logits of all rows [tokens] from now on; -inf excludes a token."""
        self._added = added.astype(self._graph.float)
        self.block.values[ADDED].update_inplace(self._added)

    def run(self, steps: int) -> Tokens:
        """Append the best token to every row, `steps` times: [rows, steps]."""
        self._make_room(steps)
        for step in range(steps):
            self._graph.run(self._step, wait=step == steps - 1)
        start = self._position + 1
        self._position += steps
        chosen: Tokens = self._step.history.numpy()[: self.rows, start : start + steps]
        self._tokens = chosen[:, -1]
        return chosen

    def reorder(self, rows: Tokens) -> None:
        """Let rows continue others, by a copy of the past to the other side."""
        # Cross-attention stays as it is: rows that change places have the same source.
        if np.array_equal(rows, np.arange(len(rows))):
            return
        self.block.moved.update_inplace(_filled_up(rows, self.block.rows))
        before, session = self._step, self._graph.small[SELECT_PAST]
        self._side = 1 - self._side
        self._use_step()
        if before.moves is None:
            outputs = {selected(name): value for name, value in self._step.past.items()}
            before.moves = bind(session, {**before.past, ROWS: self.block.moved}, outputs)
        session.run_with_iobinding(before.moves)

    def keep(self, rows: Tokens) -> None:
        """Reduce the batch to these rows, by a copy of all caches to smaller buffers."""
        graph = self._graph
        block = self.block
        step = self._step
        release = self._release
        self._lengths = self._lengths[rows]
        self._tokens = self._tokens[rows]
        self._side = 0
        self._take(graph.acquire(size_class(len(rows)), block.source), len(rows))
        taken = graph.value(_filled_up(rows, self.block.rows))
        caches = {**self.block.cross, **self._step.past}
        outputs = {selected(name): value for name, value in caches.items()}
        graph.run_small(SELECT_CACHES, {**block.cross, **step.past, ROWS: taken}, outputs)
        self.feed(self._tokens)
        release()

    def _take(self, block: Buffers, rows: int) -> None:
        """Decode in other buffers, without their caches."""
        self.block, self.rows = block, rows
        # With the batch its buffers are free again.
        self._release = weakref.finalize(self, self._graph.release, block)
        self._release.atexit = False
        lengths = _filled_up(self._lengths, block.rows)
        for name, heads in self._graph.masks.items():
            block.values[name].update_inplace(mask_of(lengths, heads, block.source))
        block.values[ADDED].update_inplace(self._added)
        self._step, _ = self._graph.step(block, self._room, self._side)
        self._write_position()

    def _make_room(self, steps: int) -> None:
        """Move the caches to longer ones if the next steps do not fit."""
        if self._position + steps <= self._room:
            return
        before, slots = self._step, 2 * self._room
        kept = np.minimum(np.arange(slots), self._room - 1)  # for each position of the longer ones
        self._room = slots
        self._use_step()
        outputs = {lengthened(name): value for name, value in self._step.past.items()}
        inputs = {**before.past, SLOTS: self._graph.value(kept)}
        self._graph.run_small(LENGTHEN, inputs, outputs)

    def _use_step(self) -> None:
        """Change to the step of the present room and side."""
        self._step, new = self._graph.step(self.block, self._room, self._side)
        if new:
            self._write_position()
            self.feed(self._tokens)

    def _write_position(self) -> None:
        self.block.values["position"].update_inplace(np.array([self._position]))
        filled = np.full(self.block.rows, self._position, np.int32)
        self.block.values[FILLED].update_inplace(filled)


def _filled_up(array: NDArray[Any], rows: int) -> NDArray[Any]:
    """Fill up to as many rows as buffers have; further ones repeat the first, and are ignored."""
    return np.concatenate([array, np.repeat(array[:1], rows - len(array), axis=0)])
