"""Writing a graph to one file, and reading it, a weight at a time.

Serialised as a whole, a graph's weights are in memory three more times while they are written. A
protobuf message is the concatenation of its fields, so the weights are left out of what is
serialised, and follow it in the file one after the other.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.runtime.onnx_bytes import varint

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

# Field number and wire type (length-delimited), as in onnx.proto3.
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW = bytes([7 << 3 | 2]), bytes([5 << 3 | 2]), b"\x4a"
MOST_INSIDE = 1024  # bytes of a weight that is read together with the graph
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
    values = ((name, value.const_value) for name, value in weights.items())
    _write(
        proto,
        [_Stored(name, list(t.shape), int(t.dtype), t.nbytes, t.tobytes) for name, t in values],
        path,
    )


def write_proto(model: ModelProto, path: Path, directory: Path) -> None:
    """Write a model whose weights are below `MOST_BYTES` to one file.

    Args:
        model: its initializers have raw or external data.
        directory: where external data lies.
    """
    from onnx import GraphProto, ModelProto

    rest = ModelProto()
    rest.CopyFrom(ModelProto(**{f.name: v for f, v in model.ListFields() if f.name != "graph"}))
    own = {f.name: v for f, v in model.graph.ListFields() if f.name != "initializer"}
    rest.graph.CopyFrom(GraphProto(**own))
    _write(rest, [_stored(tensor, directory) for tensor in model.graph.initializer], path)


def tensor_bytes(tensor: TensorProto) -> int:
    """Bytes of a tensor's numbers, wherever they lie."""
    from onnx.helper import tensor_dtype_to_np_dtype

    return math.prod(tensor.dims) * tensor_dtype_to_np_dtype(tensor.data_type).itemsize


@dataclass(frozen=True)
class _Stored:
    """A weight on its way to a file."""

    name: str
    dims: list[int]
    data_type: int
    nbytes: int
    read: Callable[[], bytes]

    def head(self) -> bytes:
        """All of an initializer up to its numbers."""
        from onnx import TensorProto

        described = TensorProto(name=self.name, dims=self.dims, data_type=self.data_type)
        own = described.SerializeToString(deterministic=True) + _TENSOR_RAW + varint(self.nbytes)
        return _GRAPH_INITIALIZER + varint(len(own) + self.nbytes) + own


def _stored(tensor: TensorProto, directory: Path) -> _Stored:
    from onnx.numpy_helper import to_array

    def read() -> bytes:
        return to_array(tensor, str(directory)).tobytes()

    size = tensor_bytes(tensor)
    return _Stored(tensor.name, list(tensor.dims), tensor.data_type, size, read)


def _write(proto: ModelProto, weights: Sequence[_Stored], path: Path) -> None:
    """Write a model without initializers, and these behind it."""
    graph = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    heads = [weight.head() for weight in weights]
    size = len(graph) + sum(map(len, heads)) + sum(weight.nbytes for weight in weights)
    with path.open("wb") as file:
        file.write(proto.SerializeToString(deterministic=True))
        file.write(_MODEL_GRAPH + varint(size) + graph)
        for head, weight in zip(heads, weights, strict=True):
            file.write(head)
            file.write(weight.read())


def read_model(path: Path) -> ModelProto:
    """Read a graph and leave its weights where they are: they become external data.

    What is external is the graph's own file. `onnx.numpy_helper.to_array(tensor, path.parent)`
    reads a weight, `onnx.load` would hold them all twice for a while.
    """
    from onnx import ModelProto

    model, rest, graph = ModelProto(), bytearray(), bytearray()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for tag, begin, start, end in _fields(data, 0, len(data)):
            if tag != _MODEL_GRAPH:
                rest += data[begin:end]
                continue
            for inner, inner_begin, inner_start, inner_end in _fields(data, start, end):
                if inner == _GRAPH_INITIALIZER:
                    tensor = model.graph.initializer.add()
                    _read_tensor(tensor, data, inner_start, inner_end, path.name)
                else:
                    graph += data[inner_begin:inner_end]
    model.MergeFromString(bytes(rest))
    model.graph.MergeFromString(bytes(graph))
    return model


def _read_tensor(tensor: TensorProto, data: mmap.mmap, begin: int, end: int, file: str) -> None:
    """Everything of an initializer but numbers that take much room."""
    from onnx import TensorProto

    described = bytearray()
    for tag, start, value, stop in _fields(data, begin, end):
        if tag == _TENSOR_RAW and stop - value >= MOST_INSIDE:
            tensor.data_location = TensorProto.EXTERNAL
            for key, text in (("location", file), ("offset", value), ("length", stop - value)):
                tensor.external_data.add(key=key, value=str(text))
        else:
            described += data[start:stop]
    tensor.MergeFromString(bytes(described))


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
