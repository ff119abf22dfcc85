"""Runs of a session at fixed shapes: buffers that stay, and on CUDA one captured graph for each.

A captured graph is launched at once, where a run launches every node by itself; small batches wait
for nothing else. It reads and writes the same memory each time, so batches are copied into buffers
of the shape that they are rounded up to. A thread that captures a graph is the only one that can
replay it, and what is captured stays until the session ends: their number is bounded.
"""

from __future__ import annotations

import ctypes
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.runtime.session import bind, run_failures

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue, RunOptions

MOST_SHAPES = 64
# Larger batches keep a GPU busy for longer than it takes to launch their nodes: a fused graph of
# BERT-base's size takes 0.9 ms for any batch of up to 16 x 32 tokens, and 1.3 ms for 16 x 128.
MOST_TOKENS = 2048
# Capturing fails while another thread of the process uses the GPU, and what is replayed uses memory
# that other runs may be given: batches take turns.
CAPTURING = RLock()
_REFUSED = "graph capture"  # in onnxruntime's message for a graph that cannot be captured
_NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}

_log = logging.getLogger(__name__)


def numbered(graph: int) -> RunOptions:
    """Options of runs that are captured as, and replay, the graph with a number from 1 on."""
    from onnxruntime import RunOptions

    options = RunOptions()
    # onnxruntime captures the first run with a new number; 0 is its own.
    options.add_run_config_entry("gpu_graph_id", str(graph))
    return options


def uncaptured() -> RunOptions:
    """Options of a run that is neither captured nor replayed, of a session that captures."""
    return numbered(-1)


def rounded(rows: int, tokens: int, most_tokens: int) -> tuple[int, int]:
    """The shape of the buffers for a batch: 1, 2, 4, 8, … rows of 16, 24, 32, 48, 64, … tokens.

    Args:
        tokens: of the longest row.
        most_tokens: that the model has positions for.
    """
    longest = 16
    while longest < tokens:
        longest = longest * 4 // 3 if longest % 3 == 0 else longest * 3 // 2
    return 1 << (rows - 1).bit_length(), min(longest, max(tokens, most_tokens))


class CaptureError(Exception):
    """A run could not be captured."""


def open_to_capture(
    opened: Callable[[str, bool], InferenceSession], role: str, directory: Path
) -> tuple[InferenceSession, bool]:
    """A session whose runs can be captured, if the graph allows that; and whether it does.

    Args:
        opened: opens the graph with a role; and whether runs of it are to be captured.
        directory: the artifact's, for the warning where it does not.
    """
    try:
        return opened(role, True), True
    except InputError as error:
        if _REFUSED not in str(error.__cause__):
            raise
        warn_uncaptured(role, directory, str(error.__cause__))
        return opened(role, False), False


def warn_uncaptured(role: str, directory: Path, reason: str) -> None:
    """Warn that a session launches each node, since its graph cannot be captured here."""
    warnings.warn(
        f"onnxruntime cannot capture the {role} graph in {directory} "
        f"({reason.splitlines()[0]:.200}), so small batches take longer than they could",
        stacklevel=3,
    )


@dataclass(frozen=True)
class Captured:
    """A shape that runs at once.

    Args:
        bytes: of its buffers, and of the device's memory that was taken by capturing it.
    """

    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class _Buffers:
    inputs: Mapping[str, OrtValue]
    outputs: Mapping[str, OrtValue]
    binding: IOBinding
    options: RunOptions


class FixedShapes:
    """The shapes that one session has been run at. One thread runs it at a time.

    Args:
        device: `cpu` or `cuda`.
        captures: whether the session was opened to capture graphs; without, as on a CPU, its
            buffers are fixed all the same.
    """

    def __init__(self, session: InferenceSession, device: str, captures: bool) -> None:
        self._session, self._device, self._captures = session, device, captures
        self._types = {value.name: value.type for value in session.get_outputs()}
        self._shapes: dict[tuple[int, ...], _Buffers] = {}
        self._thread: int | None = None
        self.captured: list[Captured] = []

    def run(
        self,
        shape: tuple[int, ...],
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, Sequence[int]],
    ) -> dict[str, NDArray[Any]] | None:
        """Values of the outputs; None where as many shapes as can be are others, or a thread.

        Args:
            shape: names the sizes of all inputs and outputs.
            inputs: of these sizes.
            outputs: name -> size.

        Raises:
            CaptureError: the first run of a shape failed while it was captured.
        """
        if self._thread not in (None, get_ident()):
            return None
        known = shape in self._shapes
        if not known:
            if len(self._shapes) == MOST_SHAPES:
                return None
            self._thread = get_ident() if self._captures else None
            self._shapes[shape] = self._prepare(inputs, outputs)
        buffers = self._shapes[shape]
        for name, value in inputs.items():
            buffers.inputs[name].update_inplace(np.ascontiguousarray(value))
        before = 0 if known else used_bytes()
        try:
            self._session.run_with_iobinding(buffers.binding, buffers.options)
        except run_failures() as error:
            if known or not self._captures:
                raise
            raise CaptureError(str(error)) from error
        if not known:
            values = (*buffers.inputs.values(), *buffers.outputs.values())
            taken = sum(value.tensor_size_in_bytes() for value in values)
            taken += max(0, used_bytes() - before)
            self.captured.append(Captured(shape, taken))
            _log.debug("shape %s: %s bytes", shape, taken)
        # Copies: on a CPU these arrays are the buffers themselves.
        return {name: np.array(value.numpy()) for name, value in buffers.outputs.items()}

    def _prepare(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, Sequence[int]]
    ) -> _Buffers:
        from onnxruntime import OrtValue

        def buffer(array: NDArray[Any]) -> OrtValue:
            # A copy: on a CPU the value is a view of the array.
            return OrtValue.ortvalue_from_numpy(array.copy(), self._device, 0)

        read = {name: buffer(value) for name, value in inputs.items()}
        written = {
            name: buffer(np.zeros(size, _NUMPY[self._types[name]]))
            for name, size in outputs.items()
        }
        options = numbered(len(self._shapes) + 1) if self._captures else uncaptured()
        return _Buffers(read, written, bind(self._session, read, written), options)


def used_bytes() -> int:
    """Memory of the current thread's GPU that is in use, by whomever; 0 where there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    failed = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return 0 if failed else total.value - free.value
