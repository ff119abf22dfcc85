"""A form that a graph has for CUDA in float16, and the graphs that it needs beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto


@dataclass(frozen=True)
class CudaForm:
    """What `TaskGraphs.cuda_forms` has for a role.

    Args:
        rewrite: the form of a float32 graph, whose external data is in the directory; the graph
            stays as it is. None: this graph has none.
        write_beside: writes further graphs beside the written one, with names that end so; role ->
            file name.
    """

    rewrite: Callable[[ModelProto, Path], ModelProto | None]
    write_beside: Callable[[Path, str], Mapping[str, str]] = lambda graph, suffix: {}
