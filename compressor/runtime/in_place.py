"""A decoder graph that writes keys and values into the buffers it reads; on CPUs only.

A step copies nothing but the new token's keys and values, and its inputs and outputs are the same
memory in every step, so they are bound once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.decoder import BEST, DecoderGraph
from compressor.runtime.processors import Scores, Tokens

if TYPE_CHECKING:
    from onnxruntime import OrtValue

# Tokens that there is room for at first; then for 40, 72, 136, … (2 n - 8). With a multiple of 32
# all heads' rows would fall into the same sets of the processor's cache: a step of a 6+6 model with
# 64 sentences took 5.3 ms with 32 and 4.5 ms with 24.
FIRST_LENGTH = 24

Cache = NDArray[np.float32]  # [rows, heads, length, head_dim]


@dataclass(frozen=True)
class BufferedStep:
    """The arrays that the graph has written its outputs to; a `search.Step`."""

    logits: Scores  # [rows, vocabulary]
    best_tokens: Tokens  # [rows]

    def best(self) -> Tokens:
        return self.best_tokens

    def scores(self) -> Scores:
        return self.logits


class InPlaceDecoder:
    """One batch being decoded; a `search.Decoder`. Arguments are those of `CachedDecoder`."""

    def __init__(
        self, graph: DecoderGraph, rows: int, cross: Mapping[str, OrtValue], mask: Tokens
    ) -> None:
        self._graph = graph
        self._encoded = cross  # owns the memory that the other two look at
        self._cross = {name: cross[name] for name in graph.cross}
        self.cross: dict[str, Cache] = {}  # the same as arrays, once rows were selected
        self._mask = mask
        self._sources = np.arange(rows)  # of every row; the beams of a sentence have the same one
        self._position = 0
        self.past = self._new_past(rows, FIRST_LENGTH)
        self._bind()

    def step(self, tokens: Tokens) -> BufferedStep:
        # A decoder without self-attention heads has no buffers to outgrow.
        if self._position == self._length and self.past:
            self._move_past(np.arange(len(tokens)), 2 * self._position - 8)
            self._bind()
        self._token_input[:, 0] = tokens
        self._position_input[0] = self._position
        self._graph.session.run_with_iobinding(self._binding)
        self._position += 1
        return self._output

    def reorder(self, rows: Tokens) -> None:
        changed = np.flatnonzero(rows != np.arange(len(rows)))
        for cache in self.past.values() if len(changed) else ():
            # What lies behind is written before it is read, so it need not move.
            _replace(cache[:, :, : self._position], changed, rows)

    def keep(self, rows: Tokens) -> None:
        if not self.cross:
            self.cross = {name: _view(value) for name, value in self._cross.items()}
        if len(rows) > len(self._mask):  # beam search repeats each source after the first step
            self.cross = {name: cache[rows] for name, cache in self.cross.items()}
            self._move_past(rows, FIRST_LENGTH)
        else:
            # Fewer rows stay in the same memory, so that nothing is allocated.
            moved = np.flatnonzero(self._sources[rows] != self._sources[: len(rows)])
            for name, cache in self.cross.items():
                _replace(cache, moved, rows)
                self.cross[name] = cache[: len(rows)]
            self.reorder(rows)
            self.past = {name: cache[: len(rows)] for name, cache in self.past.items()}
        self._cross = {name: self._graph.value(cache) for name, cache in self.cross.items()}
        self._mask, self._sources = self._mask[rows], self._sources[rows]
        self._bind()

    def _new_past(self, rows: int, length: int) -> dict[str, Cache]:
        """Room for the caches, in one block: the system takes several back when they are freed."""
        self._length = length
        shapes = {
            name: (rows, heads, length, head_dim)
            for name, (_, heads, _, head_dim) in self._graph.past_shapes.items()
        }
        ends = list(accumulate(prod(shape) for shape in shapes.values()))
        block = np.empty(ends[-1] if ends else 0, np.float32)
        return {
            name: block[end - prod(shape) : end].reshape(shape)
            for (name, shape), end in zip(shapes.items(), ends, strict=True)
        }

    def _move_past(self, rows: Tokens, length: int) -> None:
        """Copy rows of the caches, as far as they are filled, to new ones of some length."""
        old, filled = self.past, self._position
        # More rows than before do not fit into the old memory, nor does a longer past.
        self.past = self._new_past(len(rows), max(length, filled))
        for name, cache in self.past.items():
            cache[:, :, :filled] = old[name][rows, :, :filled]

    def _bind(self) -> None:
        """Bind all inputs and outputs to their memory."""
        graph, rows = self._graph, len(self._mask)
        self._token_input = np.empty((rows, 1), np.int64)
        self._position_input = np.empty(1, np.int64)
        scores = np.empty((rows, graph.scored), np.float32)
        self._output = BufferedStep(scores, np.empty(rows, np.int64))
        # A value shares the memory of its array.
        past = {name: graph.value(array) for name, array in self.past.items()}
        tokens, position = graph.value(self._token_input), graph.value(self._position_input)
        inputs = {"input_ids": tokens, "position": position, **self._cross, **past}
        if graph.reads_mask:
            inputs["attention_mask"] = graph.value(self._mask)
        self._binding = graph.session.io_binding()
        for name, value in inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, array in {"logits": self._output.logits, BEST: self._output.best_tokens}.items():
            self._binding.bind_ortvalue_output(name, graph.value(array))
        for name, value in past.items():
            self._binding.bind_ortvalue_output(name.replace("past", "present"), value)


def _view(value: OrtValue) -> Cache:
    """The numbers of a value on the CPU, not copied; valid as long as the value."""
    address = ctypes.cast(value.data_ptr(), ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(address, tuple(value.shape()))


def _replace(cache: Cache, changed: Tokens, rows: Tokens) -> None:
    """Row i becomes row `rows[i]`, for the `changed` i; the others are these rows already."""
    # Indexing with an array copies, so rows may take each other's places.
    cache[changed] = cache[rows[changed]]
