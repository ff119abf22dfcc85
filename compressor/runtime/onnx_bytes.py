"""Small ONNX graphs put together byte by byte: the package `onnx` is not needed to run artifacts.

Field numbers are those of onnx.proto3; all that is used is length-delimited fields and small
integers.
"""

from __future__ import annotations

from collections.abc import Iterable

# TensorProto.DataType
FLOAT, UINT8, INT8, INT32, INT64, FLOAT16 = 1, 2, 3, 6, 7, 10
_IR_VERSION, _OPSET = 8, 13


def model(name: str, parts: Iterable[bytes]) -> bytes:
    """A ModelProto whose graph has the given nodes, inputs and outputs."""
    graph = _text(2, name) + b"".join(parts)
    opset = _text(1, "") + _integer(2, _OPSET)
    return _integer(1, _IR_VERSION) + _message(7, graph) + _message(8, opset)


def node(operator: str, inputs: Iterable[str], output: str) -> bytes:
    """A node without attributes."""
    read = b"".join(_text(1, name) for name in inputs)
    return _message(1, read + _text(2, output) + _text(4, operator))


def graph_input(name: str, element: int, rank: int) -> bytes:
    """An input tensor, all sizes unknown."""
    return _value(11, name, element, rank)


def graph_output(name: str, element: int, rank: int) -> bytes:
    """An output tensor, all sizes unknown."""
    return _value(12, name, element, rank)


def varint(value: int) -> bytes:
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


def _integer(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def _message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _value(field: int, name: str, element: int, rank: int) -> bytes:
    shape = _message(2, _message(1, b"") * rank)
    tensor = _integer(1, element) + shape
    return _message(field, _text(1, name) + _message(2, _message(1, tensor)))
