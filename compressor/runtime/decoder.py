"""The one-step decoder graph behind `search.Decoder`, with its caches in one of two forms."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.batching import Batch, require_right_padding
from compressor.runtime.candidates import Candidates, ScoredTokens
from compressor.runtime.capture import open_to_capture
from compressor.runtime.engines import Setup
from compressor.runtime.graph_names import (
    BEST,
    CANDIDATE_DECODER,
    CAPACITY,
    COUNT,
    RANK,
    ROWS,
    SELECT_CACHES,
    SELECT_PAST,
    TOP_TOKENS,
    TOP_VALUES,
    present,
    selected,
)
from compressor.runtime.search import Decoder, Scores, Tokens
from compressor.runtime.session import bind, bind_inputs, to_device
from compressor.runtime.step_memory import (
    FIRST_LENGTH,
    MOST_SPARE_BYTES,
    Cache,
    Shape,
    SpareMemory,
    StepMemory,
    empty_caches,
)

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class DecoderGraph:
    """The sessions that all decodings share: encoder, decoder, and graphs that move its caches.

    Args:
        open_graph: opens the graph with a role, and so that its runs can be captured if told to.
        setup: what is opened.
        candidates: of batches; None: all tokens are scored.
    """

    further: ClassVar[tuple[str, ...]] = ()  # roles of small graphs that this form needs, too

    def __init__(
        self,
        open_graph: Callable[[str, bool], InferenceSession],
        setup: Setup,
        candidates: Candidates | None = None,
    ) -> None:
        self.setup, self.device = setup, setup.device
        captures = bool(self.further) and setup.captures
        step = "decoder" if candidates is None else CANDIDATE_DECODER
        pairs = [
            open_to_capture(open_graph, role, setup.directory, captures)
            for role in ("encoder", step)
        ]
        self.encoder, self.session = (session for session, _ in pairs)
        self.captures = [session for session, captured in pairs if captured]
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.cross = [name for name in self.inputs if name.startswith("cross_")]
        self.past = [name for name in self.inputs if name.startswith("past_")]
        self.reads_mask = "attention_mask" in self.inputs
        (logits,) = (value for value in self.session.get_outputs() if value.name == "logits")
        self.logits_type = FLOATS[logits.type]
        self.candidates = candidates
        self.all_tokens = ScoredTokens(logits.shape[-1]) if candidates is None else candidates.every
        self.scored = self.all_tokens.every  # how many tokens
        # Such a graph writes its caches into the buffers that it reads them from.
        self.in_place = not self.further and any(
            value.shape[2:3] == [CAPACITY] for value in self.inputs.values()
        )
        # Caches in NumPy's buffers are moved by NumPy, without a graph.
        taken = {SELECT_PAST: self.past, SELECT_CACHES: [*self.past, *self.cross]}
        roles = [role for role, caches in taken.items() if caches and not self.in_place]
        # Not in artifacts of older versions, nor for a decoder that selects tokens by itself.
        ranks = RANK in setup.artifact.precisions[setup.precision] and not self.further
        roles += [RANK] if ranks else []
        self.small = {role: open_graph(role, False) for role in (*roles, *self.further)}
        nothing = dict.fromkeys(self.cross, np.empty(0, np.float32)) | dict(self.all_tokens.inputs)
        if self.reads_mask:
            nothing["attention_mask"] = np.empty(0, np.int64)
        self.spare = SpareMemory(nothing)

    def start(self, batch: Batch, always: Sequence[int] | None = None) -> Decoder:
        """Run the encoder on a padded batch.

        Args:
            batch: `input_ids` and `attention_mask`, [rows, source].
            always: tokens that are always candidates; None: all tokens are scored.

        Returns:
            The decoder before its first step.

        Raises:
            UsageError: rows are padded on the left, where the graphs are made for a device.
        """
        ids = batch["input_ids"]
        mask = batch["attention_mask"]
        cross = {}
        if self.setup.artifact.only_device(self.setup.precision):
            require_right_padding(mask)
        if self.cross:  # without cross-attention heads the decoder does not read the source
            inputs = {"input_ids": self.input(ids), "attention_mask": self.input(mask)}
            binding = bind(self.encoder, inputs, dict.fromkeys(self.cross, self.device))
            self.encoder.run_with_iobinding(binding)
            cross = dict(zip(self.cross, binding.get_outputs(), strict=True))
        scored = self.all_tokens
        if self.candidates is not None and always is not None:
            scored = self.candidates.of(batch, always)
        return (InPlaceDecoder if self.in_place else CachedDecoder)(self, cross, mask, scored)

    def value(self, array: Any, device: str | None = None) -> OrtValue:
        """Put an array on a device, by default the session's."""
        return to_device(array, device or self.device)

    def input(self, array: Any) -> OrtValue | NDArray[Any]:
        """What to bind as an input for an array, which must stay as it is until it is read."""
        # On a CPU it is read where it is; an OrtValue of it would take four times as long.
        return np.ascontiguousarray(array) if self.device == "cpu" else self.value(array)

    def shapes(self, names: Iterable[str], rows: int, length: int) -> dict[str, Shape]:
        """Shapes of caches, [rows, heads, length, head_dim]; the graph fixes heads, head_dim."""
        fixed = {name: self.inputs[name].shape for name in names}
        return {name: (rows, heads, length, size) for name, (_, heads, _, size) in fixed.items()}

    def caches(self, names: Iterable[str], rows: int, length: int) -> dict[str, OrtValue]:
        """Make empty caches, [rows, heads, length, head_dim], of these names."""
        return {
            name: self.value(np.zeros(shape, FLOATS[self.inputs[name].type]))
            for name, shape in self.shapes(names, rows, length).items()
        }

    def run_small(
        self, role: str, inputs: Mapping[str, OrtValue], outputs: Mapping[str, OrtValue | str]
    ) -> Sequence[OrtValue]:
        """Run one of the graphs `small`.

        Args:
            role: of the graph.
            inputs: its inputs.
            outputs: values to write to, or the name of a device to make them on, as for `bind`.

        Returns:
            Its outputs in their order.
        """
        binding = bind(self.small[role], inputs, outputs)
        self.small[role].run_with_iobinding(binding)
        values: Sequence[OrtValue] = binding.get_outputs()
        return values

    def rank(
        self, logits: OrtValue, scored: ScoredTokens, count: int
    ) -> tuple[Scores, Tokens] | None:
        """Select the best next tokens, as `Decoder.top`, by logits [rows, scored tokens]."""
        if RANK not in self.small:
            return None
        inputs = {"logits": logits, COUNT: self.value(np.array([min(count, scored.count)]), "cpu")}
        outputs = self.run_small(RANK, inputs, dict.fromkeys((TOP_VALUES, TOP_TOKENS), "cpu"))
        values, places = (value.numpy() for value in outputs)
        return values, scored.numbers(places)

    def select_rows(self, caches: Mapping[str, OrtValue], rows: Tokens) -> dict[str, OrtValue]:
        """Copy rows of caches.

        Args:
            caches: name -> [rows, heads, length, head_dim]; those of the past, or all.
            rows: numbers of rows, which may repeat.

        Returns:
            The same names with these rows, on the session's device.
        """
        if not caches:
            return {}
        # A graph has fixed inputs, so there is one for the past and one for all caches.
        role = SELECT_CACHES if len(caches) > len(self.past) else SELECT_PAST
        names = [selected(name) for name in caches]
        inputs = {**caches, ROWS: self.value(rows)}
        outputs = self.run_small(role, inputs, dict.fromkeys(names, self.device))
        return dict(zip(caches, outputs, strict=True))


class CachedDecoder:
    """One batch being decoded, with new caches from every step, on the session's device.

    Args:
        graph: the decoder.
        cross: cross-attention keys and values of the sources, from the encoder.
        mask: the sources' attention mask, [rows, source].
        scored: tokens, of all steps.
    """

    def __init__(
        self,
        graph: DecoderGraph,
        cross: Mapping[str, OrtValue],
        mask: Tokens,
        scored: ScoredTokens,
    ) -> None:
        self._graph, self._scored = graph, scored
        self._position = 0
        self.cross = dict(cross)
        self.past = graph.caches(graph.past, len(mask), 0)
        self._bind_source(mask)

    def step(self, tokens: Tokens) -> None:
        """Append one token to each row, by a run of the graph."""
        graph, binding = self._graph, self._binding
        self._token_input.update_inplace(np.ascontiguousarray(tokens)[:, None])  # [rows, 1]
        self._position_input.update_inplace(np.array([self._position]))
        for name, value in self.past.items():
            binding.bind_ortvalue_input(name, value)
            # Bound anew in every run, so that each gets memory of its own.
            binding.bind_output(present(name), graph.device)
        graph.session.run_with_iobinding(binding)
        past = binding.get_outputs()[-len(self.past) :]
        self.past = dict(zip(self.past, past, strict=False))
        self._position += 1

    def best(self) -> Tokens:
        """The buffer with the next token with the largest logit in each row."""
        return self._best

    def scores(self) -> Scores:
        """Logits of the next token, in float32."""
        return self._scored.spread(np.asarray(self._logits.numpy(), np.float32))

    def top(self, count: int) -> tuple[Scores, Tokens] | None:
        """The best next tokens of each row, selected on the session's device."""
        return self._graph.rank(self._logits, self._scored, count)

    def reorder(self, rows: Tokens) -> None:
        """Let rows continue others, by a copy of the past."""
        # Cross-attention stays as it is: rows that change places have the same source.
        if not np.array_equal(rows, np.arange(len(rows))):
            self.past = self._graph.select_rows(self.past, rows)

    def keep(self, rows: Tokens) -> None:
        """Reduce the batch to these rows, by a copy of all caches."""
        caches = self._graph.select_rows({**self.cross, **self.past}, rows)
        self.cross = {name: caches[name] for name in self.cross}
        self.past = {name: caches[name] for name in self.past}
        self._bind_source(self._mask[rows])

    def _bind_source(self, mask: Tokens) -> None:
        """Bind what is the same in every step: all but the past."""
        graph, rows = self._graph, len(mask)
        self._mask = mask
        self._token_input = graph.value(np.empty((rows, 1), np.int64))
        self._position_input = graph.value(np.empty(1, np.int64))
        self._best = np.empty(rows, np.int64)
        self._logits = graph.value(np.empty((rows, self._scored.count), graph.logits_type))
        inputs: dict[str, Any] = {"input_ids": self._token_input, **self.cross}
        inputs |= {"position": self._position_input, **self._scored.inputs}
        if graph.reads_mask:
            inputs["attention_mask"] = graph.value(mask)
        outputs = {"logits": self._logits, BEST: graph.value(self._best, "cpu")}
        self._binding = bind(graph.session, inputs, outputs)


class InPlaceDecoder:
    """One batch being decoded, on a CPU, with caches that the graph changes in place.

    A step copies the new token's alone, in memory that is the same for every step. When the decoder
    is no longer referred to, little memory goes to the next batch, if that has as many rows.

    Args:
        graph: the decoder.
        cross: cross-attention keys and values of the sources, from the encoder.
        mask: the sources' attention mask, [rows, source].
        scored: tokens, of all steps.
    """

    def __init__(
        self,
        graph: DecoderGraph,
        cross: Mapping[str, OrtValue],
        mask: Tokens,
        scored: ScoredTokens,
    ) -> None:
        self._graph, self._scored = graph, scored
        self._position = 0
        self._mask = mask
        self._encoded = cross  # owns the memory that `cross` looks at
        self.cross: dict[str, Cache] = {}  # the same as arrays, once rows were selected
        # The source of every row; the beams of a sentence have the same one.
        self._sources = np.arange(len(mask))
        self._length = FIRST_LENGTH
        rows = len(mask)
        spare = graph.spare.take(rows, scored.count)
        self._memory = spare or self._memory_of(self._new_past(rows), rows)
        if self._memory.bytes <= MOST_SPARE_BYTES:
            # Not when the process ends, in which another thread may still decode.
            weakref.finalize(self, graph.spare.give_back, self._memory).atexit = False
        self._bind_source()

    @property
    def past(self) -> dict[str, Cache]:
        """The caches by their names."""
        return self._memory.past

    def step(self, tokens: Tokens) -> None:
        """Append one token to each row, in longer buffers where these are full."""
        # A decoder without self-attention heads has no buffers to outgrow.
        if self._position == self._length and self.past:
            self._move_past(np.arange(len(tokens)), 2 * self._position - 8)
            self._bind_source()
        memory = self._memory
        memory.tokens[:, 0] = tokens
        memory.position[0] = self._position
        self._graph.session.run_with_iobinding(memory.binding)
        self._position += 1

    def best(self) -> Tokens:
        """The buffer with the next token with the largest logit in each row."""
        return self._memory.best

    def scores(self) -> Scores:
        """Logits of the next token: of all tokens the buffer."""
        return self._scored.spread(self._memory.logits)

    def top(self, count: int) -> tuple[Scores, Tokens] | None:
        """The best next tokens of each row, selected by a graph."""
        return self._graph.rank(self._memory.logits_value, self._scored, count)

    def reorder(self, rows: Tokens) -> None:
        """Let rows continue others; only those that change are copied."""
        changed = np.flatnonzero(rows != np.arange(len(rows)))
        for cache in self.past.values() if len(changed) else ():
            # The rest is written before it is read, so it need not move.
            _replace(cache[:, :, : self._position], changed, rows)

    def keep(self, rows: Tokens) -> None:
        """Reduce the batch to these rows, in the same memory unless there are more."""
        if not self.cross:
            for name, value in self._encoded.items():  # arrays on their memory
                address = ctypes.cast(value.data_ptr(), ctypes.POINTER(ctypes.c_float))
                self.cross[name] = np.ctypeslib.as_array(address, tuple(value.shape()))
        if len(rows) > len(self._mask):  # beam search repeats each source after the first step
            self.cross = {name: cache[rows] for name, cache in self.cross.items()}
            self._move_past(rows, FIRST_LENGTH)
        else:
            # Fewer rows stay in the same memory, so that no caches are allocated.
            moved = np.flatnonzero(self._sources[rows] != self._sources[: len(rows)])
            for name, cache in self.cross.items():
                _replace(cache, moved, rows)
                self.cross[name] = cache[: len(rows)]
            self.reorder(rows)
            past = {name: cache[: len(rows)] for name, cache in self.past.items()}
            self._memory = self._memory_of(past, len(rows))
        self._mask, self._sources = self._mask[rows], self._sources[rows]
        self._bind_source()

    def _move_past(self, rows: Tokens, length: int) -> None:
        """Copy rows of the caches, as far as they are filled, to new ones of some length."""
        old, filled = self.past, self._position
        # More rows than before do not fit into the old memory, nor does a longer past.
        self._length = max(length, filled)
        new = self._new_past(len(rows))
        for name, cache in new.items() if filled else ():
            cache[:, :, :filled] = old[name][rows, :, :filled]
        self._memory = self._memory_of(new, len(rows))

    def _new_past(self, rows: int) -> dict[str, Cache]:
        return empty_caches(self._graph.shapes(self._graph.past, rows, self._length))

    def _memory_of(self, past: Mapping[str, Cache], rows: int) -> StepMemory:
        return StepMemory(self._graph.session, past, rows, self._scored.count)

    def _bind_source(self) -> None:
        """Bind what belongs to the batch."""
        graph, binding = self._graph, self._memory.binding
        inputs: dict[str, Any] = {**(self.cross or self._encoded), **self._scored.inputs}
        if graph.reads_mask:
            inputs["attention_mask"] = graph.input(self._mask)
        bind_inputs(binding, inputs)


def _replace(cache: Cache, changed: Tokens, rows: Tokens) -> None:
    """Row i becomes row `rows[i]`, for the `changed` i; the others are these rows already."""
    # Indexing with an array copies, so rows may take each other's places.
    cache[changed] = cache[rows[changed]]
