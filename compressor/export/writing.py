"""Writing a graph to one file, and reading it, a weight at a time.

Serialised as a whole, a graph's weights are in memory three more times while they are written. A
protobuf message is the concatenation of its fields, so the weights are left out of what is
serialised, and follow it in the file one after the other.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.runtime.onnx_bytes import varint

if TYPE_CHECKING:
    from onnx import ModelProto

# Field number and wire type (length-delimited), as in onnx.proto3.
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW = bytes([7 << 3 | 2]), bytes([5 << 3 | 2]), b"\x4a"
# What a protobuf file can hold.
MOST_BYTES = 2**31 - 2**20


def weight_bytes(model: Any) -> int:
    """Bytes of all weights of an `onnx_ir.Model`."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values())


def write_model(model: Any, path: Path) -> None:
    """Write an `onnx_ir.Model` whose weights are below `MOST_BYTES` to one file.

    Args:
        model: its weights are left as they are.
    """
    from onnx_ir import serde

    weights = dict(model.graph.initializers)
    model.graph.initializers.clear()
    try:
        proto = serde.serialize_model(model)
    finally:
        model.graph.initializers.update(weights)
    graph = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    heads = {name: _head(name, value.const_value) for name, value in weights.items()}
    size = len(graph) + sum(
        len(head) + weights[name].const_value.nbytes for name, head in heads.items()
    )
    with path.open("wb") as file:
        file.write(proto.SerializeToString(deterministic=True))
        file.write(_MODEL_GRAPH + varint(size) + graph)
        for name, head in heads.items():
            file.write(head)
            file.write(weights[name].const_value.tobytes())


def _head(name: str, tensor: Any) -> bytes:
    """All of an initializer up to its numbers."""
    from onnx import TensorProto

    described = TensorProto(name=name, dims=list(tensor.shape), data_type=int(tensor.dtype))
    own = described.SerializeToString(deterministic=True) + _TENSOR_RAW + varint(tensor.nbytes)
    return _GRAPH_INITIALIZER + varint(len(own) + tensor.nbytes) + own


def read_model(path: Path) -> ModelProto:
    """Read a graph, a weight at a time; `onnx.load` would hold them all twice for a while."""
    from onnx import ModelProto, TensorProto
    from onnx.external_data_helper import load_external_data_for_model

    model, rest, graph = ModelProto(), bytearray(), bytearray()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for tag, begin, start, end in _fields(data, 0, len(data)):
            if tag != _MODEL_GRAPH:
                rest += data[begin:end]
                continue
            for inner, inner_begin, inner_start, inner_end in _fields(data, start, end):
                if inner == _GRAPH_INITIALIZER:
                    model.graph.initializer.add().ParseFromString(data[inner_start:inner_end])
                    if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
                        data.madvise(mmap.MADV_DONTNEED)  # what was read need not stay mapped
                else:
                    graph += data[inner_begin:inner_end]
    model.MergeFromString(bytes(rest))
    model.graph.MergeFromString(bytes(graph))
    if any(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer):
        load_external_data_for_model(model, str(path.parent))
    return model


def _fields(data: mmap.mmap, begin: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Fields of a message: tag, where the field begins, where its value starts, where it ends.

    Only the two kinds that models and graphs are made of: numbers, and what has a length.
    """
    while begin < end:
        tag = data[begin : begin + 1]
        value, start = _read_varint(data, begin + 1)
        delimited = tag[0] & 7 == 2
        stop = start + value if delimited else start
        yield tag, begin, start, stop
        begin = stop


def _read_varint(data: mmap.mmap, place: int) -> tuple[int, int]:
    """The number, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
