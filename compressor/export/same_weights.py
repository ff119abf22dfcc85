"""All weights of float32 graphs must be those of the checkpoint beside them.

Random rows show that a graph computes what the checkpoint does. They miss rows of tables that no
row looks up, and changes below the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.export.precision_names import BASE
from compressor.export.stored_arrays import stored_array
from compressor.export.task_graphs import Network, TaskGraphs
from compressor.runtime.artifact import GRAPH_DIRECTORY, Artifact

Values = NDArray[Any]
_CONSTANT = 1  # numbers of an initializer that may be a constant of a formula


def require_same_weights(
    graphs: TaskGraphs, network: Network, artifact: Artifact, directory: Path
) -> None:
    """Check the float32 graphs' weights against the checkpoint beside them.

    Args:
        directory: the artifact.

    Raises:
        InputError: the checkpoint has no such weights.
    """
    path = directory / GRAPH_DIRECTORY
    known = [tensor.detach().numpy() for tensor in graphs.tensors(network)]
    for file in sorted(set(artifact.precisions[BASE].values())):
        for name, values in _weights(path / file):
            if not _is_known(values, known):
                raise InputError(
                    f"{path / file}: the checkpoint beside it has no weights like those of {name}; "
                    "export it again",
                    id="graphs-of-another-model",
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
