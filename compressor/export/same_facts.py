"""What stands both in graphs and in a checkpoint must be the same: settings, and embedding tables.

Random rows show that products of matrices are the same, since every weight is part of every answer.
They miss the settings that `graphs.json` repeats, and rows of tables that no row looks up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from compressor.errors import InputError
from compressor.export.precision_names import BASE
from compressor.export.task_graphs import Network, TaskGraphs
from compressor.runtime.artifact import GRAPH_DIRECTORY, Artifact
from compressor.runtime.fields import parse
from compressor.storage.manifest import GRAPHS_FILE

_OWN = {"precisions", "default_precision", "output_tokens"}  # of the graphs alone

Table = NDArray[Any]


def require_same_facts(
    graphs: TaskGraphs,
    network: Network,
    artifact: Artifact,
    directory: Path,
    tokens: list[int] | None,
) -> None:
    """Check `graphs.json` and the float32 graphs' tables against the checkpoint beside them.

    Args:
        directory: the artifact.
        tokens: the only ones that a decoder scores; None: all.

    Raises:
        InputError: they say something else.
    """
    path = directory / GRAPH_DIRECTORY
    files = dict(artifact.precisions[BASE])
    described = parse(type(artifact), graphs.description(network, path, files), GRAPHS_FILE)
    for name in (item.name for item in fields(artifact) if item.name not in _OWN):
        found, wanted = getattr(artifact, name), getattr(described, name)
        if found != wanted:
            raise _differs(f"{path / GRAPHS_FILE}: {name} is {found}", f"says {wanted}")
    known = [tensor.detach().numpy() for tensor in _tensors(network)]
    for file in sorted(set(files.values())):
        for name, table in _tables(path / file):
            if not _is_known(table, known, tokens):
                raise _differs(f"{path / file}: the table {name} is {table.shape}", "has no such")


def _tensors(network: Network) -> Iterator[Any]:
    yield from (tensor for _, tensor in network.model.named_parameters())
    yield from (tensor for _, tensor in network.model.named_buffers())


def _tables(path: Path) -> Iterator[tuple[str, Table]]:
    """The matrices whose rows a graph looks up, and their names."""
    graph = onnx.load(path, load_external_data=False).graph
    looked_up = {
        node.input[0] for node in graph.node if node.op_type in ("Gather", "GatherElements")
    }
    for tensor in graph.initializer:
        is_float = tensor.data_type == onnx.TensorProto.FLOAT
        if is_float and tensor.name in looked_up and len(tensor.dims) == 2:
            yield tensor.name, _array(tensor, path.parent)


def _array(tensor: onnx.TensorProto, directory: Path) -> Table:
    if not uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    # Not by onnx, which takes a file with a second hard link for an attack.
    place = ExternalDataInfo(tensor)
    path, count = directory / place.location, math.prod(tensor.dims)
    return np.fromfile(path, "<f4", count, offset=place.offset or 0).reshape(tensor.dims)


def _is_known(table: Table, known: list[Table], tokens: list[int] | None) -> bool:
    """Whether a table is one of the model's, the rows of some tokens, or rows that follow."""
    rows, width = table.shape
    for tensor in known:
        if tensor.ndim != 2 or tensor.shape[1] != width or len(tensor) < rows:
            continue
        # Tables of positions may begin after the rows of special tokens.
        parts = [tensor[n : n + rows] for n in {0, len(tensor) - rows}]
        if tokens is not None and rows == len(tokens) and max(tokens) < len(tensor):
            parts.append(tensor[tokens])
        if any(np.array_equal(part, table) for part in parts):
            return True
    return False


def _differs(what: str, instead: str) -> InputError:
    return InputError(
        f"{what:.300}, but the checkpoint beside it {instead:.300}; export it again",
        id="graphs-of-another-model",
    )
