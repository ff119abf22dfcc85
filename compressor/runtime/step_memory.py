"""What the steps of a decoder read and write on a CPU, bound once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.batching import Floats
from compressor.runtime.graph_names import BEST, present
from compressor.runtime.session import bind, bind_inputs, to_device

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

# Tokens that there is room for at first; then for 40, 72, 136, … (2 n - 8). With a multiple of 32
# all heads' rows would fall into the same sets of the processor's cache: 5.3 ms a step, not 4.5.
FIRST_LENGTH = 24
# Of the memory that is kept: enough for small batches, where making it anew counts most.
MOST_SPARE_BYTES = 1 << 24

Cache = Floats  # [rows, heads, length, head_dim]
Shape = tuple[int, int, int, int]  # of a cache


class StepMemory:
    """The memory of the steps of some rows, with caches that are changed in place.

    The sources are not bound: their keys and values, their mask, and candidates.

    Args:
        session: of the step.
        past: the caches by their names.
        rows: of the batch.
        scored: how many tokens are scored.
    """

    def __init__(
        self, session: InferenceSession, past: Mapping[str, Cache], rows: int, scored: int
    ) -> None:
        self.past = dict(past)
        self.rows, self.scored = rows, scored
        self.tokens = np.empty((rows, 1), np.int64)
        self.position = np.empty(1, np.int64)
        self.logits = np.empty((rows, scored), np.float32)
        self.best = np.empty(rows, np.int64)
        self.logits_value = to_device(self.logits, "cpu")
        values = {name: to_device(array, "cpu") for name, array in past.items()}
        inputs: dict[str, Any] = {**values, "input_ids": self.tokens, "position": self.position}
        outputs = {"logits": self.logits_value, BEST: to_device(self.best, "cpu")}
        outputs |= {present(name): value for name, value in values.items()}
        self.binding = bind(session, inputs, outputs)
        self.bytes = self.logits.nbytes + sum(array.nbytes for array in past.values())


class SpareMemory:
    """Memory of batches that have ended, for the next one if it has as many rows.

    Args:
        nothing: empty values by the names of the inputs that belong to a batch. They are bound in
            place of its own, whose memory is then free.
    """

    def __init__(self, nothing: Mapping[str, OrtValue | NDArray[Any]]) -> None:
        self._nothing = nothing
        self._spare: list[StepMemory] = []

    def take(self, rows: int, scored: int) -> StepMemory | None:
        """The memory of the last batch, if it had so many rows and scored so many tokens."""
        with suppress(IndexError):  # of an empty list; other threads take from it, too
            last = self._spare.pop()
            if (last.rows, last.scored) == (rows, scored):
                return last
            self._spare.clear()
        return None

    def give_back(self, memory: StepMemory) -> None:
        """Keep the memory of a batch that has ended, if not much is kept already."""
        if memory.bytes + sum(other.bytes for other in self._spare) <= MOST_SPARE_BYTES:
            bind_inputs(memory.binding, self._nothing)
            self._spare.append(memory)


def empty_caches(shapes: Mapping[str, Shape]) -> dict[str, Cache]:
    """Caches of these shapes by their names, not filled."""
    # In one block: the system takes several back when they are freed.
    sizes = [prod(shape) for shape in shapes.values()]
    parts = np.split(np.empty(sum(sizes), np.float32), np.cumsum(sizes)[:-1])
    return {name: x.reshape(shapes[name]) for name, x in zip(shapes, parts, strict=False)}
