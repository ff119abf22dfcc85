"""The form of a graph for CUDA in float16, and its additional graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto


@dataclass(frozen=True)
class CudaForm:
    """A value of `TaskGraphs.cuda_forms`.

    Args:
        rewrite: returns the form of a float32 graph, whose external data is in the directory, or
            None without one; the graph does not change.
        write_beside: writes additional graphs next to the written one, with a suffix of their
            names; returns role -> file name.
    """

    rewrite: Callable[[ModelProto, Path], ModelProto | None]
    write_beside: Callable[[Path, str], Mapping[str, str]] = lambda graph, suffix: {}
