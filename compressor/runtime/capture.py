"""Runs that are captured as CUDA graphs, where that is possible."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compressor.errors import CompressWarning, InputError
from compressor.runtime.session import run_failures

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, RunOptions

UNCAPTURED = -1  # number of runs that are neither captured nor replayed


@dataclass(frozen=True)
class Captured:
    """A shape that runs as a captured graph, and the bytes of its buffers."""

    shape: tuple[int, ...]
    bytes: int


def numbered(graph: int) -> RunOptions:
    """Options of runs that are captured as, and replay, the graph with a number from 1 on."""
    from onnxruntime import RunOptions

    options = RunOptions()
    # onnxruntime captures the first run with a new number; 0 is its own.
    options.add_run_config_entry("gpu_graph_id", str(graph))
    return options


def capture(
    session: InferenceSession, binding: IOBinding, number: int, role: str, directory: Path
) -> int:
    """Run what is bound, captured with a number.

    Args:
        session: the graph.
        binding: its inputs and outputs.
        number: a new one, from 1 on; or `UNCAPTURED`.
        role: of the graph, for a warning.
        directory: of the artifact, for a warning.

    Returns:
        The number; `UNCAPTURED` if capturing failed, with a warning.
    """
    try:
        session.run_with_iobinding(binding, numbered(number))
    except run_failures() as error:
        if number == UNCAPTURED:
            raise
        warn_uncaptured(role, directory, str(error))
        session.run_with_iobinding(binding, numbered(UNCAPTURED))
        return UNCAPTURED
    return number


def open_to_capture(
    open_graph: Callable[[str, bool], InferenceSession], role: str, directory: Path, captures: bool
) -> tuple[InferenceSession, bool]:
    """Open a graph so that its runs can be captured; with a warning, as it is where that fails.

    Args:
        open_graph: opens the graph with a role, and so that its runs can be captured if told to.
        role: of the graph.
        directory: of the artifact, for the warning.
        captures: whether to capture at all.

    Returns:
        The session, and whether its runs can be captured.
    """
    if not captures:
        return open_graph(role, False), False
    try:
        return open_graph(role, True), True
    except InputError as error:
        if "graph capture" not in str(error.__cause__):  # onnxruntime's words
            raise
        warn_uncaptured(role, directory, str(error.__cause__))
        return open_graph(role, False), False


def warn_uncaptured(role: str, directory: Path, reason: str) -> None:
    """Warn that a session launches each node, since its graph cannot be captured here."""
    warnings.warn(
        f"onnxruntime cannot capture the {role} graph in {directory} "
        f"({reason.splitlines()[0]:.200}), so small batches take longer than they could",
        CompressWarning,
        stacklevel=3,
    )
