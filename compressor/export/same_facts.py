"""What stands both in graphs and in a checkpoint must be the same: settings, and all weights.

Random rows show that a graph computes what the checkpoint does. They miss the settings that
`graphs.json` repeats, rows of tables that no row looks up, and changes below the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from compressor.errors import InputError
from compressor.export.graphs import WEIGHTS_SUFFIX
from compressor.export.precision_names import BASE
from compressor.export.stored_arrays import stored_array
from compressor.export.task_graphs import Network, TaskGraphs
from compressor.runtime.artifact import GRAPH_DIRECTORY, Artifact
from compressor.runtime.fields import parse
from compressor.storage.manifest import GRAPHS_FILE

# Of the graphs alone.
_OWN = {"precisions", "default_precision", "fastest_engines", "made_for", "output_tokens"}

Values = NDArray[Any]
_CONSTANT = 1  # numbers of an initializer that may be a constant of a formula


def require_same_facts(
    graphs: TaskGraphs, network: Network, artifact: Artifact, directory: Path
) -> None:
    """Check `graphs.json` and the float32 graphs' weights against the checkpoint beside them.

    Args:
        directory: the artifact.

    Raises:
        InputError: they say something else.
    """
    path = directory / GRAPH_DIRECTORY
    files = dict(artifact.precisions[BASE])
    # As it would be written now; parsed, so that defaults are filled in on both sides.
    described = parse(type(artifact), graphs.description(network, path, files), GRAPHS_FILE)
    for name in (item.name for item in fields(artifact) if item.name not in _OWN):
        found, wanted = getattr(artifact, name), getattr(described, name)
        if found != wanted:
            raise _differs(f"{path / GRAPHS_FILE}: {name} is {found}", f"says {wanted}")
    known = [tensor.detach().numpy() for tensor in graphs.tensors(network)]
    for file in sorted(set(files.values())):
        for name, values in _weights(path / file):
            if not _is_known(values, known):
                raise _differs(f"{path / file}: weights of {name}", "has no such")


def require_data_beside(path: Path) -> None:
    """Check that a graph reads no other files than those beside it that the manifest covers.

    Raises:
        InputError: it does, or is damaged.
    """
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except DecodeError as error:
        raise InputError(
            f"{path} is not an ONNX graph; export the model again", id="graph-damaged"
        ) from error
    for tensor in filter(uses_external_data, graph.initializer):
        location = ExternalDataInfo(tensor).location
        # Graphs of two forms may share the weights of one.
        beside = location.removesuffix(WEIGHTS_SUFFIX)
        if beside == location or Path(beside).name != beside or not (path.parent / beside).exists():
            raise InputError(
                f"{path} reads weights from {location[:200]!r}, not from {path.name}"
                f"{WEIGHTS_SUFFIX}; export the model again",
                id="graph-data-elsewhere",
            )


def _weights(path: Path) -> Iterator[tuple[str, Values]]:
    """A float32 graph's weights and their names; not what the exporter computed, as masks."""
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and math.prod(tensor.dims) > _CONSTANT:
            # Not by onnx, which takes a file with a second hard link for an attack.
            yield tensor.name, stored_array(tensor, path.parent)


def _is_known(values: Values, known: list[Values]) -> bool:
    """Whether weights are one of the model's tensors, transposed or not, or some of its rows."""
    return any(_begins_or_ends(x, values) or np.array_equal(x.T, values) for x in known)


def _begins_or_ends(tensor: Values, rows: Values) -> bool:
    """Tables of positions may begin after the rows of special tokens."""
    if tensor.shape[1:] != rows.shape[1:] or len(tensor) < len(rows):
        return False
    count = len(rows)
    return np.array_equal(tensor[:count], rows) or np.array_equal(tensor[-count:], rows)


def _differs(what: str, instead: str) -> InputError:
    return InputError(
        f"{what:.300}, but the checkpoint beside it {instead:.300}; export it again",
        id="graphs-of-another-model",
    )
