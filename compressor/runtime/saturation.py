"""Whether this processor's 8-bit products overflow, and what to do about it."""

from __future__ import annotations

from functools import cache

import numpy as np

from compressor.runtime import onnx_bytes

# Makes onnxruntime turn signed weights into unsigned ones, whose products do not saturate on x86.
# They are slower, so it is set only where it is needed: with VNNI instructions it would be a loss.
EXACT_PRODUCTS = ("session.x64quantprecision", "1")


@cache
def products_saturate() -> bool:
    """Multiply the largest 8-bit numbers, unsigned by signed, and see if the sum is right.

    x86 processors without VNNI add pairs of such products in 16 bits: 2 x 255 x 127 becomes 32,767.
    """
    import onnxruntime

    graph = onnx_bytes.model(
        "product",
        [
            onnx_bytes.node("MatMulInteger", ["a", "b"], "y"),
            onnx_bytes.graph_input("a", onnx_bytes.UINT8, 2),
            onnx_bytes.graph_input("b", onnx_bytes.INT8, 2),
            onnx_bytes.graph_output("y", onnx_bytes.INT32, 2),
        ],
    )
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    a, b = np.full((2, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    return bool((session.run(None, {"a": a, "b": b})[0] != 64 * 255 * 127).any())
