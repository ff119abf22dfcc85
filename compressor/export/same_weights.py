"""Check that all weights of float32 graphs are those of the checkpoint in the same artifact.

Comparing outputs on random rows does not cover rows of embedding tables that are not looked up, and
changes below the tolerance.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from compressor.errors import InputError
from compressor.export.graph_edit import stored_array
from compressor.export.precision_names import BASE
from compressor.export.task_graphs import Network, TaskGraphs
from compressor.runtime.artifact import GRAPH_DIRECTORY, Artifact


def require_same_weights(
    graphs: TaskGraphs, network: Network, artifact: Artifact, directory: Path
) -> None:
    """Check the float32 graphs' weights against the checkpoint; single numbers may be constants.

    Raises:
        InputError: a weight is not in the checkpoint.
    """
    known = [tensor.detach().numpy() for tensor in graphs.tensors(network)]
    for file in sorted(set(artifact.precisions[BASE].values())):
        path = directory / GRAPH_DIRECTORY / file
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            if tensor.data_type != onnx.TensorProto.FLOAT or math.prod(tensor.dims) <= 1:
                continue
            # Not read by onnx, which rejects files with hard links.
            values = stored_array(tensor, path.parent)
            if not any(_has(x, values) or np.array_equal(x.T, values) for x in known):
                raise InputError(
                    f"{path}: the weights of {tensor.name} are not those of the checkpoint in the "
                    "same directory; export it again",
                    id="graphs-of-another-model",
                )


def _has(tensor: NDArray[Any], rows: NDArray[Any]) -> bool:
    """Whether rows are the first or last rows of a tensor, as in tables of positions, or all."""
    if tensor.shape[1:] != rows.shape[1:] or len(tensor) < len(rows):
        return False
    count = len(rows)
    return np.array_equal(tensor[:count], rows) or np.array_equal(tensor[-count:], rows)
