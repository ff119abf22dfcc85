"""Check that all weights of float32 graphs are those of the checkpoint in the same artifact.

Comparing outputs on random rows does not cover rows of embedding tables that are not looked up, and
changes below the tolerance.
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
    """Check the float32 graphs' weights against the checkpoint.

    Args:
        directory: the artifact.

    Raises:
        InputError: a weight is not in the checkpoint.
    """
    path = directory / GRAPH_DIRECTORY
    known = [tensor.detach().numpy() for tensor in graphs.tensors(network)]
    for file in sorted(set(artifact.precisions[BASE].values())):
        for name, values in _weights(path / file):
            if not _is_known(values, known):
                raise InputError(
                    f"{path / file}: the weights of {name} are not those of the checkpoint in the "
                    "same directory; export it again",
                    id="graphs-of-another-model",
                )


def _weights(path: Path) -> Iterator[tuple[str, Values]]:
    """Names and values of a float32 graph's weights, without single constants."""
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and math.prod(tensor.dims) > _CONSTANT:
            # Not by onnx, which rejects files with hard links.
            yield tensor.name, stored_array(tensor, path.parent)


def _is_known(values: Values, known: list[Values]) -> bool:
    """Whether weights equal a tensor of the model, its transpose, or its first or last rows."""
    return any(_begins_or_ends(x, values) or np.array_equal(x.T, values) for x in known)


def _begins_or_ends(tensor: Values, rows: Values) -> bool:
    """Whether rows are the first or last rows of a tensor, as in tables of positions."""
    if tensor.shape[1:] != rows.shape[1:] or len(tensor) < len(rows):
        return False
    count = len(rows)
    return np.array_equal(tensor[:count], rows) or np.array_equal(tensor[-count:], rows)
