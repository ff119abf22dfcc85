"""An ONNX graph that picks rows of tensors, for caches that stay where the session runs."""

from __future__ import annotations

from collections.abc import Mapping

from compressor.runtime import onnx_bytes

_ELEMENTS = {"tensor(float)": onnx_bytes.FLOAT, "tensor(float16)": onnx_bytes.FLOAT16}


def gather_graph(tensors: Mapping[str, str]) -> bytes:
    """A serialised ModelProto with inputs `rows` [n] (int64) and tensors of four dimensions.

    For every input `x` it has an output `picked x`, whose row i is row `rows[i]` of `x`.

    Args:
        tensors: name -> type as `onnxruntime` names it, `tensor(float)` or `tensor(float16)`.
    """
    parts = [onnx_bytes.graph_input("rows", onnx_bytes.INT64, 1)]
    for name, kind in tensors.items():
        element = _ELEMENTS[kind]
        parts += [
            onnx_bytes.node("Gather", [name, "rows"], picked(name)),
            onnx_bytes.graph_input(name, element, 4),
            onnx_bytes.graph_output(picked(name), element, 4),
        ]
    return onnx_bytes.model("gather", parts)


def picked(name: str) -> str:
    """The output that belongs to an input."""
    return f"picked {name}"
