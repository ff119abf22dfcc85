"""The buffers that `device_decoder` decodes in, and the small graphs that move what is in them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from compressor.runtime.batching import Batch
from compressor.runtime.cuda_graphs import Captured, numbered, uncaptured
from compressor.runtime.decoder import (
    BEST,
    FLOATS,
    ROWS,
    SELECT_CACHES,
    SELECT_PAST,
    DecoderGraph,
    present,
    selected,
)
from compressor.runtime.processors import Scores, Tokens
from compressor.runtime.session import bind

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue, RunOptions

# Inputs of the step: real tokens of each source, filled positions of each row, room in the caches,
# what is added to the logits, and the tokens of all steps [rows, room + 1].
SOURCE_LENGTHS, FILLED, ROOM = "source_lengths", "filled", "room"
ADDED, HISTORY = "added", "history"
# The small graphs beside it: longer caches, and the largest logits.
LENGTHEN, SLOTS = "lengthen", "slots"
TOP, COUNT, TOP_VALUES, TOP_TOKENS, NORMALIZER = "top", "count", "values", "tokens", "normalizer"

# CUDA graphs of a session: each keeps its memory as long as the session. More shapes than that run
# without one.
MOST_CAPTURED = 48
# Buffers of batches that are done wait for others of their size, up to this much of them.
MOST_KEPT_BYTES = 4 << 30


def after(state: str) -> str:
    """The output of a step with the next step's input of that name."""
    return f"next_{state}"


def lengthened(cache: str) -> str:
    """The output of the graph `LENGTHEN` for the cache of that name."""
    return f"longer {cache}"


@dataclass(eq=False)
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
    options: RunOptions  # of runs of the encoder
    values: Mapping[str, OrtValue]  # of the step, by the name of the input or output
    moved: OrtValue  # numbers of rows [rows]
    steps: dict[tuple[int, int], BoundStep] = field(default_factory=dict)  # by room and side

    @property
    def bytes(self) -> int:
        held = [*self.cross.values(), *self.values.values(), *self.inputs.values()]
        for step in self.steps.values():
            held += [*step.past.values(), step.history]
        return sum(value.tensor_size_in_bytes() for value in held)


class DeviceGraph(DecoderGraph):
    """As `DecoderGraph`, with the buffers that its steps are bound to.

    Args:
        select: also `LENGTHEN` and `TOP`.
        encoder: its session.
        captures: the sessions that were opened to capture CUDA graphs.
    """

    def __init__(
        self,
        session: InferenceSession,
        device: str,
        select: Mapping[str, InferenceSession],
        encoder: InferenceSession,
        captures: Collection[InferenceSession] = (),
    ) -> None:
        super().__init__(session, device, select)
        self.captures = captures
        # Rows and source tokens of the encoder's; also the room, of the decoder's.
        self.captured: list[Captured] = []
        self.reads_source = SOURCE_LENGTHS in self.inputs
        self.float = FLOATS[self.inputs[ADDED].type]
        self._encoder = encoder
        self._free: list[Buffers] = []
        self._lock = threading.Lock()
        self._threads = threading.local()

    def acquire(self, rows: int, source: int) -> Buffers:
        """Buffers for exclusive use, for at least as many rows and source tokens."""
        with self._lock:
            for block in self._free:
                if (block.rows, block.source) == (rows, source):
                    self._free.remove(block)
                    return block
        ones = np.ones((rows, source), np.int64)
        inputs = {name: self.value(ones.copy()) for name in ("input_ids", "attention_mask")}
        cross = self._caches(self.cross, rows, source)
        values = {
            "input_ids": self.value(np.zeros((rows, 1), np.int64)),
            "position": self.value(np.zeros(1, np.int64)),
            FILLED: self.value(np.zeros(rows, np.int32)),
            ADDED: self.value(np.zeros(self.scored, self.float)),
            "logits": self.value(np.zeros((rows, self.scored), self.float)),
        }
        if self.reads_source:
            values[SOURCE_LENGTHS] = self.value(np.ones(rows, np.int32))
        options, _ = self._options(self._encoder, (rows, source), inputs.values())
        encoding = bind(self._encoder, inputs, cross)
        moved = self.value(np.arange(rows))
        return Buffers(rows, source, inputs, cross, encoding, options, values, moved)

    def release(self, block: Buffers) -> None:
        """Keep buffers for another batch, if not too many are kept already."""
        with self._lock:
            kept = sum(other.bytes for other in self._free)
            if kept + block.bytes <= MOST_KEPT_BYTES:
                self._free.append(block)

    def encode(self, block: Buffers, batch: Batch) -> None:
        """Write the keys and values of sources [rows, source tokens], as many as the buffers'."""
        for name, value in block.inputs.items():
            value.update_inplace(batch[name])
        self._encoder.run_with_iobinding(block.encoding, block.options)

    def step(self, block: Buffers, room: int, side: int) -> tuple[BoundStep, bool]:
        """The step over caches of a length, and whether it ran: its position is then any."""
        if (room, side) not in block.steps:
            block.steps[room, side] = self._new_step(block, room)
        step = block.steps[room, side]
        # A CUDA graph belongs to the thread that captured it, and goes with it.
        if not hasattr(self._threads, "captured"):
            self._threads.captured = weakref.WeakSet()
        if step in self._threads.captured:
            return step, False
        # To capture a step onnxruntime runs it several times, so this must be none that counts.
        self.run(step)
        self._threads.captured.add(step)
        return step, True

    def _new_step(self, block: Buffers, room: int) -> BoundStep:
        from onnxruntime import OrtValue

        past = self._caches(self.past, block.rows, room)
        history = self.value(np.zeros((block.rows, room + 1), np.int64))
        inputs = {**block.values, **block.cross, **past, HISTORY: history}
        logits = inputs.pop("logits")
        # The length is read on the CPU, when the step is captured.
        length = OrtValue.ortvalue_from_numpy(np.array([room], np.int32), "cpu", 0)
        outputs = {"logits": logits} | {present(name): value for name, value in past.items()}
        outputs |= {after(name): inputs[name] for name in ("position", FILLED, HISTORY)}
        binding = bind(self.session, {**inputs, ROOM: length}, outputs)
        # The best token goes where the next step reads it, in another shape.
        tokens = inputs["input_ids"].data_ptr()
        binding.bind_output(BEST, self.device, 0, np.int64, [block.rows], tokens)
        shape, kept = (block.rows, block.source, room), (*past.values(), history)
        return BoundStep(past, history, binding, self._options(self.session, shape, kept))

    def _caches(self, names: Iterable[str], rows: int, length: int) -> dict[str, OrtValue]:
        """Empty buffers [rows, heads, length, head_dim] for these inputs."""
        caches = {}
        for name in names:
            _, heads, _, head_dim = self.inputs[name].shape
            caches[name] = self.value(np.zeros((rows, heads, length, head_dim), self.float))
        return caches

    def _options(
        self, session: InferenceSession, shape: tuple[int, ...], values: Iterable[OrtValue]
    ) -> tuple[RunOptions, RunOptions]:
        """Options of a run that waits for its end, and of one that does not.

        It is captured, with the buffers `values`, if the session does that.
        """
        if session not in self.captures or len(self.captured) == MOST_CAPTURED:
            return uncaptured(), uncaptured()
        held = sum(value.tensor_size_in_bytes() for value in values)
        self.captured.append(Captured(shape, held))
        number = len(self.captured)
        waiting, going_on = numbered(number), numbered(number)
        # Replayed graphs stay in order; other runs may take each other's memory.
        going_on.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return waiting, going_on

    def run(self, step: BoundStep, wait: bool = True) -> None:
        """One step; `wait` for its end, so that its outputs can be read."""
        self.session.run_with_iobinding(step.binding, step.replayed[0 if wait else 1])

    def move(self, step: BoundStep, other: BoundStep, block: Buffers) -> None:
        """Write the rows `block.moved` of a step's caches to those of its other side."""
        session = self._select[SELECT_PAST]
        if step.moves is None:
            outputs = {selected(name): value for name, value in other.past.items()}
            step.moves = bind(session, {**step.past, ROWS: block.moved}, outputs)
        session.run_with_iobinding(step.moves)

    def copy(
        self, block: Buffers, step: BoundStep, rows: Tokens, target: Buffers, into: BoundStep
    ) -> None:
        """Write rows of all caches to other buffers."""
        outputs = {selected(name): x for name, x in {**target.cross, **into.past}.items()}
        inputs = {**block.cross, **step.past, ROWS: self.value(rows)}
        session = self._select[SELECT_CACHES]
        session.run_with_iobinding(bind(session, inputs, outputs))

    def lengthen(self, step: BoundStep, into: BoundStep, slots: Tokens) -> None:
        """Write the caches to longer ones, whose position i is position `slots[i]`."""
        outputs = {lengthened(name): value for name, value in into.past.items()}
        session = self._select[LENGTHEN]
        session.run_with_iobinding(bind(session, {**step.past, SLOTS: self.value(slots)}, outputs))

    def top(self, logits: OrtValue, count: int) -> tuple[Scores, Tokens]:
        """The `count` largest log-probabilities of each row, and their tokens, best first."""
        from onnxruntime import OrtValue

        session = self._select[TOP]
        number = OrtValue.ortvalue_from_numpy(np.array([count]), "cpu", 0)
        on_host = dict.fromkeys((TOP_VALUES, TOP_TOKENS, NORMALIZER), "cpu")
        binding = bind(session, {"logits": logits, COUNT: number}, on_host)
        session.run_with_iobinding(binding)
        values, tokens, normalizer = (value.numpy() for value in binding.get_outputs())
        return values - normalizer, tokens
