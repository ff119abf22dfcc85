"""Captured CUDA graphs: what runs of encoders and of decoders share.

A captured graph is launched at once, where a run launches every node by itself; small batches wait
for nothing else. It reads and writes the same memory each time, so its inputs and outputs are
buffers that stay. A thread that captures a graph is the only one that can replay it, and what is
captured stays until the session ends: their number is bounded.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from compressor.errors import InputError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions

# Capturing fails while another thread of the process uses the GPU, and what is replayed uses memory
# that other runs may be given: batches take turns.
CAPTURING = RLock()
LOG = logging.getLogger(__name__)
_REFUSED = "graph capture"  # in onnxruntime's message for a graph that cannot be captured


@dataclass(frozen=True)
class Captured:
    """A shape that runs at once, and the bytes of its buffers and of what capturing it took."""

    shape: tuple[int, ...]
    bytes: int


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


def open_to_capture(
    open_graph: Callable[[str, bool], InferenceSession], role: str, directory: Path
) -> tuple[InferenceSession, bool]:
    """A session whose runs can be captured, if the graph allows that; and whether it does.

    `open_graph` opens the graph with a role; and whether runs of it are to be captured. The
    directory is the artifact's, for the warning where they cannot be.
    """
    try:
        return open_graph(role, True), True
    except InputError as error:
        if _REFUSED not in str(error.__cause__):
            raise
        warn_uncaptured(role, directory, str(error.__cause__))
        return open_graph(role, False), False


def warn_uncaptured(role: str, directory: Path, reason: str) -> None:
    """Warn that a session launches each node, since its graph cannot be captured here."""
    warnings.warn(
        f"onnxruntime cannot capture the {role} graph in {directory} "
        f"({reason.splitlines()[0]:.200}), so small batches take longer than they could",
        stacklevel=3,
    )
