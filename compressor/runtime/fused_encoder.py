"""Encoders' graphs that are made for CUDA: small batches captured, large ones without padding.

Small batches run at shapes that they are rounded up to, each captured as a CUDA graph when it is
met first. Of large ones with much padding the layers compute the real tokens alone; that is a graph
of its own, which is opened when it is needed first. It holds the weights a second time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.batching import Batch
from compressor.runtime.cuda_graphs import (
    CAPTURING,
    MOST_TOKENS,
    Captured,
    CaptureError,
    FixedShapes,
    open_to_capture,
    rounded,
    uncaptured,
    warn_uncaptured,
)
from compressor.runtime.engines.engine import Setup
from compressor.runtime.packing import positions, require_right_padding
from compressor.runtime.session import run_errors

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

MODEL, PACKED = "model", "packed"  # roles of the graphs
LOGITS = "logits"
# Packing pays by the tokens that are left out, and costs two nodes and a few indices. These are
# estimates, which no GPU has confirmed: half a microsecond a token was measured for a model of
# BERT-base's size.
LEAST_PADDING, LEAST_SHARE = 2048, 0.2


class FusedEncoder:
    """Logits of batches. Threads may share it; one alone runs captured graphs.

    Args:
        opened: opens the graph with a role; and whether runs of it are to be captured.
        setup: of the engine; with several workers nothing is captured.
    """

    def __init__(self, opened: Callable[[str, bool], InferenceSession], setup: Setup) -> None:
        self._opened, self._setup = opened, setup
        fixed = setup.cuda_graphs and setup.workers == 1
        on_cuda = setup.device == "cuda"
        if fixed and on_cuda:
            self._model, self._captures = open_to_capture(opened, MODEL, setup.directory)
        else:
            self._model, self._captures = opened(MODEL, False), False
        self._inputs = [value.name for value in self._model.get_inputs()]
        (self._logits_shape,) = (value.shape for value in self._model.get_outputs())
        self._shapes: FixedShapes | None = None
        if self._captures or (fixed and not on_cuda):
            self._shapes = FixedShapes(self._model, setup.device, self._captures)
        self._packed: InferenceSession | None = None
        self._opening = Lock()

    @property
    def captured(self) -> list[Captured]:
        """The shapes that run as one CUDA graph, with their memory."""
        return [] if self._shapes is None else list(self._shapes.captured)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """The logits [rows, outputs], or [rows, tokens, outputs], of a batch.

        Raises:
            UsageError: a row is padded on the left.
        """
        mask = batch["attention_mask"]
        require_right_padding(mask)
        if not len(mask):
            return np.zeros(self._sizes(0, mask.shape[1]), np.float32)
        alone = CAPTURING if self._captures else contextlib.nullcontext()
        with run_errors(self._setup.directory), alone:
            if self._has_packed and gains_by_packing(mask):
                logits = self._without_padding(batch)
            else:
                logits = self._with_padding(batch)
        return logits.astype(np.float32, copy=False)

    @property
    def _has_packed(self) -> bool:
        return PACKED in self._setup.artifact.precisions[self._setup.precision]

    def _sizes(self, rows: int, tokens: int) -> list[int]:
        """The shape of the logits."""
        known = {"batch": rows, "source": tokens}
        return [known.get(size, size) for size in self._logits_shape]

    def _with_padding(self, batch: Batch) -> NDArray[Any]:
        """At a fixed shape where the batch has one, else at its own."""
        inputs = {name: batch[name] for name in self._inputs}
        rows, tokens = batch["attention_mask"].shape
        artifact = self._setup.artifact
        shape = rounded(rows, tokens, artifact.max_source_tokens)
        if self._shapes is not None and shape[0] * shape[1] <= MOST_TOKENS:
            larger = enlarged(inputs, shape, artifact.pad_token_id)
            try:
                outputs = self._shapes.run(shape, larger, {LOGITS: self._sizes(*shape)})
            except CaptureError as error:
                warn_uncaptured(MODEL, self._setup.directory, str(error))
                self._captures, self._shapes = False, None
                self._model, outputs = self._opened(MODEL, False), None
            if outputs is not None:
                logits = outputs[LOGITS][:rows]
                return logits[:, :tokens] if logits.ndim == 3 else logits
        options = uncaptured() if self._captures else None
        plain: NDArray[Any] = self._model.run([LOGITS], inputs, options)[0]
        return plain

    def _without_padding(self, batch: Batch) -> NDArray[Any]:
        with self._opening:
            if self._packed is None:
                self._packed = self._opened(PACKED, False)
        values = {**batch, **positions(batch["attention_mask"])}
        inputs = {value.name: values[value.name] for value in self._packed.get_inputs()}
        logits: NDArray[Any] = self._packed.run([LOGITS], inputs)[0]
        return logits


def gains_by_packing(mask: NDArray[np.int64]) -> bool:
    """Whether a batch has enough padding, and enough of it, for the graph without."""
    padding = mask.size - int(mask.sum())
    return padding >= max(LEAST_PADDING, LEAST_SHARE * mask.size)


def enlarged(
    batch: Mapping[str, NDArray[np.int64]], shape: tuple[int, int], pad_id: int
) -> dict[str, NDArray[np.int64]]:
    """A batch with further padding, and further rows of one token, up to a shape."""
    larger = {}
    for name, value in batch.items():
        rows, tokens = value.shape
        larger[name] = np.full(shape, pad_id if name == "input_ids" else 0, np.int64)
        larger[name][:rows, :tokens] = value
        if name == "attention_mask":
            larger[name][rows:, 0] = 1  # attention over no token at all is not defined
    return larger
