"""Encoders' graphs that are made for CUDA: small batches captured, large ones without padding.

Small batches run at shapes that they are rounded up to, each captured as a CUDA graph when it is
met first. Of large ones with much padding the layers compute the real tokens alone; that is a graph
of its own, which is opened when it is needed first. It holds the weights a second time.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.runtime.batching import Batch
from compressor.runtime.cuda_graphs import (
    CAPTURING,
    MOST_TOKENS,
    Captured,
    CaptureError,
    FixedShapes,
    rounded,
    uncaptured,
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
REFUSED = "graph capture"  # in onnxruntime's message for a graph that cannot be captured


class FusedEncoder:
    """A `LogitsModel`. Threads may share it; one alone runs captured graphs.

    Args:
        opened: opens the graph with a role; and whether runs of it are to be captured.
        setup: of the engine; with several workers nothing is captured.
    """

    def __init__(self, opened: Callable[[str, bool], InferenceSession], setup: Setup) -> None:
        self._opened, self._setup = opened, setup
        fixed = setup.cuda_graphs and setup.workers == 1
        self._captures = fixed and setup.device == "cuda"
        self._model = self._open_model()
        self.inputs, self.outputs = self._model.get_inputs(), self._model.get_outputs()
        self._shapes: FixedShapes | None = None
        if self._captures or (fixed and setup.device == "cpu"):
            self._shapes = FixedShapes(self._model, setup.device, self._captures)
        self._packed: InferenceSession | None = None
        self._has_packed = PACKED in setup.artifact.precisions[setup.precision]
        self._opening = Lock()

    @property
    def captured(self) -> list[Captured]:
        """The shapes that run as one CUDA graph, with their memory."""
        return list(self._shapes.captured) if self._shapes is not None else []

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """As of a `LogitsModel`.

        Raises:
            UsageError: a row is padded on the left.
        """
        mask = batch["attention_mask"]
        require_right_padding(mask)
        if not len(mask):
            return np.zeros(self._sizes(0, mask.shape[1]), np.float32)
        alone = CAPTURING if self._captures else contextlib.nullcontext()
        with run_errors(self._setup.directory), alone:
            found = self._logits(batch)
        return found.astype(np.float32, copy=False)

    def _logits(self, batch: Batch) -> NDArray[Any]:
        if self._has_packed and gains_by_packing(batch["attention_mask"]):
            return self._without_padding(batch)
        found = self._at_fixed_shape(batch)
        return self._as_it_is(batch) if found is None else found

    def _open_model(self) -> InferenceSession:
        if not self._captures:
            return self._opened(MODEL, False)
        try:
            return self._opened(MODEL, True)
        except InputError as error:
            if REFUSED not in str(error.__cause__):
                raise
            return self._without_capture(str(error.__cause__))

    def _without_capture(self, reason: str) -> InferenceSession:
        """A session that launches each node, since graphs cannot be captured here."""
        warnings.warn(
            f"onnxruntime cannot capture the graph in {self._setup.directory} "
            f"({reason.splitlines()[0]:.200}), so small batches take longer than they could",
            stacklevel=2,
        )
        self._captures, self._shapes = False, None
        return self._opened(MODEL, False)

    def _sizes(self, rows: int, tokens: int) -> list[int]:
        """The shape of the logits."""
        (logits,) = self.outputs
        known = {"batch": rows, "source": tokens}
        return [known.get(size, size) for size in logits.shape]

    def _as_it_is(self, batch: Batch) -> NDArray[Any]:
        feeds = {value.name: batch[value.name] for value in self.inputs}
        options = uncaptured() if self._captures else None
        found: NDArray[Any] = self._model.run([LOGITS], feeds, options)[0]
        return found

    def _at_fixed_shape(self, batch: Batch) -> NDArray[Any] | None:
        rows, tokens = batch["attention_mask"].shape
        artifact = self._setup.artifact
        shape = rounded(rows, tokens, artifact.max_source_tokens)
        if self._shapes is None or shape[0] * shape[1] > MOST_TOKENS:
            return None
        given = {value.name: batch[value.name] for value in self.inputs}
        feeds = enlarged(given, shape, artifact.pad_token_id)
        try:
            found = self._shapes.run(shape, feeds, {LOGITS: self._sizes(*shape)})
        except CaptureError as error:
            self._model = self._without_capture(str(error))
            return None
        if found is None:
            return None
        logits = found[LOGITS][:rows]
        return logits[:, :tokens] if logits.ndim == 3 else logits

    def _without_padding(self, batch: Batch) -> NDArray[Any]:
        with self._opening:
            if self._packed is None:
                self._packed = self._opened(PACKED, False)
        feeds = {**batch, **positions(batch["attention_mask"])}
        given = {value.name: feeds[value.name] for value in self._packed.get_inputs()}
        found: NDArray[Any] = self._packed.run([LOGITS], given)[0]
        return found


def gains_by_packing(mask: NDArray[np.int64]) -> bool:
    """Whether a batch has enough padding, and enough of it, for the graph without."""
    padding = mask.size - int(mask.sum())
    return padding >= max(LEAST_PADDING, LEAST_SHARE * mask.size)


def enlarged(
    batch: Mapping[str, NDArray[np.int64]], shape: tuple[int, int], pad_id: int
) -> dict[str, NDArray[np.int64]]:
    """A batch with further padding, and further rows of one token, up to a shape."""
    made = {}
    for name, value in batch.items():
        rows, tokens = value.shape
        made[name] = np.full(shape, pad_id if name == "input_ids" else 0, np.int64)
        made[name][:rows, :tokens] = value
        if name == "attention_mask":
            made[name][rows:, 0] = 1  # attention over no token at all is not defined
    return made
