"""Encoders' graphs that are made for CUDA: small batches captured, large ones without padding.

Small batches run at shapes that they are rounded up to. Large ones with much padding run a graph of
its own, which is opened when it is needed first, and holds the weights a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.batching import Batch, Floats, require_right_padding
from compressor.runtime.capture import UNCAPTURED, Captured, capture, numbered, open_to_capture
from compressor.runtime.decoder import FLOATS
from compressor.runtime.engines import Setup
from compressor.runtime.gpu_thread import in_turn
from compressor.runtime.session import bind, run_errors, size_of, to_device

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue, RunOptions

MODEL, PACKED = "model", "packed"  # roles of the graphs
LOGITS = "logits"
# Inputs of the graph without padding, all int32. A token's number is row x longest row + place.
TOKENS = "tokens"  # numbers of the real tokens, row by row
OFFSETS = "token_offsets"  # [rows, longest row]: those, and behind them the numbers of the padding
STARTS = "row_starts"  # [rows + 1]: where each row begins among the real tokens, and their number
# Packing pays by the tokens that are left out (half a microsecond each for a model of BERT-base's
# size), and costs two nodes and a few indices. These are estimates, which no GPU has confirmed.
LEAST_PADDING, LEAST_SHARE = 2048, 0.2
MOST_SHAPES = 64
# Larger batches take longer than the launch of their nodes: a fused graph of BERT-base's size
# takes 0.9 ms for any batch of up to 16 x 32 tokens, and 1.3 ms for 16 x 128.
MOST_TOKENS = 2048


@dataclass
class _Buffers:
    """The memory that batches of one shape are read from and their logits written to."""

    inputs: Mapping[str, OrtValue]
    logits: OrtValue
    binding: IOBinding
    options: RunOptions | None = None  # once the shape has run


class FusedEncoder:
    """An encoder's graphs that are made for CUDA.

    Threads may share it on a GPU, or without fixed shapes. On a CPU nothing is captured, but
    buffers are fixed.

    Args:
        open_graph: opens the graph with a role, and so that its runs can be captured if told to.
        setup: what is opened.
    """

    def __init__(self, open_graph: Callable[[str, bool], InferenceSession], setup: Setup) -> None:
        self._open_graph, self._setup = open_graph, setup
        self._model, self._captures = open_to_capture(
            open_graph, MODEL, setup.directory, setup.captures
        )
        self._fixed = setup.cuda_graphs and setup.workers == 1
        self._fixed &= self._captures or not setup.captures
        self._inputs = [value.name for value in self._model.get_inputs()]
        (self._output,) = self._model.get_outputs()
        self._shapes: dict[tuple[int, int], _Buffers] = {}
        self.captured: list[Captured] = []
        self._packed: InferenceSession | None = None
        self._has_packed = PACKED in setup.artifact.precisions[setup.precision]
        self._opening = Lock()

    def run(self, batch: Batch) -> Floats:
        """Compute the logits of one batch.

        Args:
            batch: the graph's inputs, int64 [rows, tokens].

        Returns:
            float32 [rows, outputs] or [rows, tokens, outputs].

        Raises:
            UsageError: rows are padded on the left.
            InputError: the graph does not take the batch.
        """
        mask = batch["attention_mask"]
        require_right_padding(mask)
        if not len(mask):
            return np.zeros(self._sizes(0, mask.shape[1]), np.float32)
        with run_errors(self._setup.directory):
            logits = in_turn(self._logits, batch) if self._captures else self._logits(batch)
        answers: Floats = logits.astype(np.float32, copy=False)
        return answers

    def _logits(self, batch: Batch) -> NDArray[Any]:
        mask = batch["attention_mask"]
        if not (self._has_packed and gains_by_packing(mask)):
            inputs = {name: batch[name] for name in self._inputs}
            logits = self._at_fixed_shape(inputs)
            return self._uncaptured(inputs) if logits is None else logits
        with self._opening:
            if self._packed is None:
                self._packed = self._open_graph(PACKED, False)
        values: dict[str, NDArray[Any]] = {**batch, **positions(mask)}
        names = [value.name for value in self._packed.get_inputs()]
        packed: NDArray[Any] = self._packed.run([LOGITS], {x: values[x] for x in names})[0]
        return packed

    def _sizes(self, rows: int, tokens: int) -> list[int]:
        """The shape of the logits."""
        known = {"batch": rows, "source": tokens}
        return [known.get(size, size) for size in self._output.shape]

    def _uncaptured(self, inputs: Batch) -> NDArray[Any]:
        """Logits; of few shapes, where cuDNN's kernel is planned anew for each of them."""
        rows, tokens = inputs["attention_mask"].shape
        if not self._has_packed:
            artifact = self._setup.artifact
            _, longest = rounded(rows, tokens, artifact.max_source_tokens)
            shape = step_up(1, rows), longest
            inputs = enlarged(inputs, shape, artifact.pad_token_id)
        options = numbered(UNCAPTURED) if self._captures else None
        logits: NDArray[Any] = self._model.run([LOGITS], inputs, options)[0]
        return logits[:rows, :tokens] if logits.ndim == 3 else logits[:rows]

    def _at_fixed_shape(self, inputs: Batch) -> NDArray[Any] | None:
        """Logits; None for large batches, and where all shapes are taken."""
        rows, tokens = inputs["attention_mask"].shape
        artifact = self._setup.artifact
        shape = rounded(rows, tokens, artifact.max_source_tokens)
        new = shape not in self._shapes
        if (
            not self._fixed
            or shape[0] * shape[1] > MOST_TOKENS
            or (new and len(self._shapes) == MOST_SHAPES)
        ):
            return None
        buffers = self._new_buffers(shape) if new else self._shapes[shape]
        for name, value in enlarged(inputs, shape, artifact.pad_token_id).items():
            buffers.inputs[name].update_inplace(value)
        if new:
            self._capture(shape, buffers)
        else:
            self._model.run_with_iobinding(buffers.binding, buffers.options)
        # A copy: on a CPU this array is the buffer itself.
        logits = np.array(buffers.logits.numpy()[:rows])
        return logits[:, :tokens] if logits.ndim == 3 else logits

    def _new_buffers(self, shape: tuple[int, int]) -> _Buffers:
        device = self._setup.device
        inputs = {name: to_device(np.zeros(shape, np.int64), device) for name in self._inputs}
        zeros = np.zeros(self._sizes(*shape), FLOATS[self._output.type])
        logits = to_device(zeros, device)
        binding = bind(self._model, inputs, {LOGITS: logits})
        return _Buffers(inputs, logits, binding)

    def _capture(self, shape: tuple[int, int], buffers: _Buffers) -> None:
        """Run a shape for the first time; on a CPU, too, it counts as captured."""
        wanted = len(self._shapes) + 1 if self._captures else UNCAPTURED
        number = capture(self._model, buffers.binding, wanted, MODEL, self._setup.directory)
        buffers.options = numbered(number)
        if number == wanted:
            held = size_of([*buffers.inputs.values(), buffers.logits])
            self.captured.append(Captured(shape, held))
        self._shapes[shape] = buffers


def rounded(rows: int, tokens: int, most_tokens: int) -> tuple[int, int]:
    """The shape of the buffers for a batch: 1, 2, 4, 8, … rows of 16, 24, 32, 48, 64, … tokens."""
    return 1 << (rows - 1).bit_length(), min(step_up(16, tokens), max(tokens, most_tokens))


def step_up(size: int, least: int) -> int:
    """The first of `size` times 1, 1.5, 2, 3, 4, … that is large enough; after 1 comes 2."""
    while size < least:
        size = size * 4 // 3 if size % 3 == 0 else max(2, size * 3 // 2)
    return size


def gains_by_packing(mask: NDArray[np.int64]) -> bool:
    """Whether a batch has so much padding that the graph without it is faster."""
    padding = mask.size - int(mask.sum())
    return padding >= max(LEAST_PADDING, LEAST_SHARE * mask.size)


def positions(mask: NDArray[np.int64]) -> dict[str, NDArray[np.int32]]:
    """Further inputs of the graph without padding.

    Args:
        mask: [rows, longest row] of 1 and 0.

    Returns:
        `TOKENS` [real tokens], `OFFSETS` [rows, longest row] and `STARTS` [rows + 1], int32.
    """
    flat = mask.reshape(-1) != 0
    tokens = np.flatnonzero(flat).astype(np.int32)
    offsets = np.concatenate([tokens, np.flatnonzero(~flat).astype(np.int32)])
    starts = np.concatenate([[0], np.cumsum(mask.sum(axis=1))])
    return {TOKENS: tokens, OFFSETS: offsets.reshape(mask.shape), STARTS: starts.astype(np.int32)}


def enlarged(batch: Batch, shape: tuple[int, int], pad_id: int) -> dict[str, NDArray[np.int64]]:
    """Add padding, and rows of one token, to a batch, up to a shape.

    Args:
        batch: name -> [rows, tokens].
        shape: at least as many rows and tokens.
        pad_id: for `input_ids`; the rest is filled with 0.

    Returns:
        name -> int64 of that shape.
    """
    larger = {}
    for name, value in batch.items():
        rows, tokens = value.shape
        larger[name] = np.full(shape, pad_id if name == "input_ids" else 0, np.int64)
        larger[name][:rows, :tokens] = value
        if name == "attention_mask":
            larger[name][rows:, 0] = 1  # attention over no token at all is not defined
    return larger
