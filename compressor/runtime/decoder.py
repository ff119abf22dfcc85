"""The one-step decoder graph as a `search.Decoder`; its caches stay on the session's device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compressor.runtime.processors import Scores, Tokens

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue

BEST = "best"  # the graph's output with the token of the largest logit
# Roles of the graphs that take rows of caches, and their input with the numbers of the rows.
SELECT_PAST, SELECT_CACHES = "select_past", "select_caches"
ROWS = "rows"
CAPACITY = "capacity"  # name of the caches' length where the graph writes them in place
FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def selected(cache: str) -> str:
    """The output of a graph that takes rows, for the cache of that name."""
    return f"selected {cache}"


def writes_in_place(session: InferenceSession) -> bool:
    """Whether a decoder graph writes its caches into the buffers that it reads them from."""
    return any(value.shape[2:3] == [CAPACITY] for value in session.get_inputs())


class DecoderGraph:
    """What is shared by all decodings: the session, its inputs, and how to take rows of caches.

    Args:
        session: of `decoder.onnx`.
        device: `cpu` or `cuda`, where the session runs.
        select: sessions by role of the graphs that take rows of the past, and of all caches
            (`compressor.export.cache_rows`); none for caches that the decoder does not have.
    """

    def __init__(
        self, session: InferenceSession, device: str, select: Mapping[str, InferenceSession]
    ) -> None:
        self.session = session
        self.device = device
        inputs = {value.name: value for value in session.get_inputs()}
        self.cross = [name for name in inputs if name.startswith("cross_")]
        self.past = [name for name in inputs if name.startswith("past_")]
        self.reads_mask = "attention_mask" in inputs
        # Name -> device of every output; the best tokens are read on the CPU in every step.
        self.outputs = {"logits": device, BEST: "cpu"}
        self.outputs.update((name.replace("past", "present"), device) for name in self.past)
        # [batch, heads, length, head_dim], of which heads and head_dim are fixed in the graph.
        self.past_shapes = {name: inputs[name].shape for name in self.past}
        outputs = {value.name: value.shape for value in session.get_outputs()}
        self.scored = outputs["logits"][-1]  # how many tokens
        self.in_place = writes_in_place(session)
        self._types = {name: inputs[name].type for name in (*self.cross, *self.past)}
        self._select = select

    def empty_past(self, rows: int) -> dict[str, OrtValue]:
        """The cache before the first step."""
        return {
            name: self.value(np.zeros((rows, heads, 0, head_dim), FLOATS[self._types[name]]))
            for name, (_, heads, _, head_dim) in self.past_shapes.items()
        }

    def value(self, array: Any) -> OrtValue:
        """The array on the session's device."""
        from onnxruntime import OrtValue

        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), self.device, 0)

    def select_rows(self, caches: Mapping[str, OrtValue], rows: Tokens) -> dict[str, OrtValue]:
        """Rows of each cache, on the device."""
        if not caches:
            return {}
        # A graph has fixed inputs, so there is one for the past and one for all caches.
        graph = self._select[SELECT_CACHES if len(caches) > len(self.past) else SELECT_PAST]
        outputs = {selected(name): self.device for name in caches}
        values = run_bound(graph, {**caches, ROWS: self.value(rows)}, outputs)
        return {name: values[selected(name)] for name in caches}


@dataclass(frozen=True)
class CachedStep:
    """The outputs of one run of the decoder graph; a `search.Step`."""

    logits: OrtValue  # [rows, vocabulary], on the session's device
    best_tokens: OrtValue  # [rows], on the CPU

    def best(self) -> Tokens:
        best: Tokens = self.best_tokens.numpy()
        return best

    def scores(self) -> Scores:
        logits: Scores = self.logits.numpy()
        return logits.astype(np.float32, copy=False)


class CachedDecoder:
    """One batch being decoded; a `search.Decoder`.

    Args:
        graph: the decoder.
        rows: number of sources.
        cross: cross-attention keys and values of the sources, from the encoder.
        mask: the sources' attention mask [rows, source].
    """

    def __init__(
        self, graph: DecoderGraph, rows: int, cross: Mapping[str, OrtValue], mask: Tokens
    ) -> None:
        self._graph = graph
        self.cross = {name: cross[name] for name in graph.cross}
        self.past = graph.empty_past(rows)
        self._set_mask(mask)
        self._position = 0

    def step(self, tokens: Tokens) -> CachedStep:
        graph = self._graph
        feeds = {
            "input_ids": graph.value(tokens[:, None]),  # [rows, 1]
            "position": graph.value(np.array([self._position])),
            **self.past,
        }
        outputs = run_bound(graph.session, feeds, graph.outputs, self._binding)
        self.past = {name: outputs[name.replace("past", "present")] for name in self.past}
        self._position += 1
        return CachedStep(outputs["logits"], outputs[BEST])

    def reorder(self, rows: Tokens) -> None:
        # Cross-attention stays as it is: rows that change places have the same source.
        if not np.array_equal(rows, np.arange(len(rows))):
            self.past = self._graph.select_rows(self.past, rows)

    def keep(self, rows: Tokens) -> None:
        caches = self._graph.select_rows({**self.cross, **self.past}, rows)
        self.cross = {name: caches[name] for name in self.cross}
        self.past = {name: caches[name] for name in self.past}
        self._set_mask(self._mask[rows])

    def _set_mask(self, mask: Tokens) -> None:
        self._mask = mask
        source = dict(self.cross)
        if self._graph.reads_mask:
            source["attention_mask"] = self._graph.value(mask)
        # These inputs are the same in every step, so they are bound once.
        self._binding = self._graph.session.io_binding()
        for name, value in source.items():
            self._binding.bind_ortvalue_input(name, value)


def run_bound(
    session: InferenceSession,
    feeds: Mapping[str, OrtValue],
    outputs: Mapping[str, str],
    binding: IOBinding | None = None,
) -> dict[str, OrtValue]:
    """Run without copying values from or to Python.

    Args:
        outputs: name -> device that its value is to be on.
        binding: one that has further inputs.
    """
    binding = session.io_binding() if binding is None else binding
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, value)
    for name, device in outputs.items():  # anew in every run, so that each gets memory of its own
        binding.bind_output(name, device)
    session.run_with_iobinding(binding)
    return dict(zip(outputs, binding.get_outputs(), strict=True))
