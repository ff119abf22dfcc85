"""An ONNX graph that picks rows of tensors, for caches that stay where the session runs.

The package `onnx`, which could build it, is not needed to run an artifact, so the few bytes are
put together here. Field numbers are those of onnx.proto3; all that is used is length-delimited
fields and small integers.
"""

from __future__ import annotations

from collections.abc import Mapping

_FLOAT, _INT64, _FLOAT16 = 1, 7, 10  # TensorProto.DataType
_ELEMENTS = {"tensor(float)": _FLOAT, "tensor(float16)": _FLOAT16}
_IR_VERSION, _OPSET = 8, 13


def gather_graph(tensors: Mapping[str, str]) -> bytes:
    """A serialised ModelProto with inputs `rows` [n] (int64) and tensors of four dimensions.

    For every input `x` it has an output `picked x`, whose row i is row `rows[i]` of `x`.

    Args:
        tensors: name -> type as `onnxruntime` names it, `tensor(float)` or `tensor(float16)`.
    """
    graph = _text(2, "gather") + _value(11, "rows", _INT64, rank=1)
    for name, kind in tensors.items():
        node = _text(1, name) + _text(1, "rows") + _text(2, picked(name)) + _text(4, "Gather")
        graph += _message(1, node)
        graph += _value(11, name, _ELEMENTS[kind]) + _value(12, picked(name), _ELEMENTS[kind])
    opset = _text(1, "") + _integer(2, _OPSET)
    return _integer(1, _IR_VERSION) + _message(7, graph) + _message(8, opset)


def picked(name: str) -> str:
    """The output that belongs to an input."""
    return f"picked {name}"


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _value(field: int, name: str, element: int, rank: int = 4) -> bytes:
    """A ValueInfoProto of a tensor, all sizes unknown."""
    shape = _message(1, b"") * rank
    tensor = _integer(1, element) + _message(2, shape)
    return _message(field, _text(1, name) + _message(2, _message(1, tensor)))
