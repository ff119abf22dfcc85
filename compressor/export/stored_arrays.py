"""Weights of graphs as memory-mapped arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto
from onnx.external_data_helper import ExternalDataInfo, uses_external_data
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.numpy_helper import to_array

from compressor.storage.input_files import inner_path


def stored_array(tensor: TensorProto, directory: Path) -> NDArray[Any]:
    """The values of a weight, memory-mapped and read-only if stored in an external file.

    Args:
        directory: of the graph.

    Raises:
        ValueError: the graph names a file outside of its directory.
    """
    if not uses_external_data(tensor) or 0 in tensor.dims:  # an empty weight cannot be mapped
        return to_array(tensor, str(directory))
    info = ExternalDataInfo(tensor)
    return np.memmap(
        directory / inner_path(info.location),
        tensor_dtype_to_np_dtype(tensor.data_type),
        mode="r",
        offset=info.offset or 0,
        shape=tuple(tensor.dims),
    )
