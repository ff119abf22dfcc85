"""Graphs without padding in NumPy: onnxruntime has kernels of their operators for CUDA alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_opsetid
from onnx.helper import make_tensor_value_info as value_info
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun


class RestorePadding(OpRun):
    """As the operator's documentation says."""

    op_domain = "com.microsoft"

    def _run(self, packed: Any, offsets: Any) -> Any:
        rows, tokens = offsets.shape
        whole = np.zeros((rows * tokens, packed.shape[1]), packed.dtype)
        whole[offsets.reshape(-1)[: len(packed)]] = packed
        return (whole.reshape(rows, tokens, -1),)


class PackedMultiHeadAttention(OpRun):
    """As the operator's documentation says."""

    op_domain = "com.microsoft"

    def _run(self, *inputs: Any, num_heads: Any = None, scale: Any = None, **_: Any) -> Any:
        query, key, value, bias, _offsets, starts = inputs
        parts = [x + b for x, b in zip((query, key, value), np.split(bias, 3), strict=True)]
        made = np.empty_like(query)
        for start, end in pairwise(starts):
            heads = [x[start:end].reshape(end - start, num_heads, -1) for x in parts]
            q, k, v = (x.transpose(1, 0, 2) for x in heads)  # [heads, tokens, head_dim]
            scores = scale * q @ k.transpose(0, 2, 1)
            shares = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
            shares /= shares.sum(-1, keepdims=True)
            made[start:end] = (shares @ v).transpose(1, 0, 2).reshape(end - start, -1)
        return (made,)


class OnCpu(OpRun):
    """A node that onnxruntime runs on CPUs, run there."""

    op_domain = "com.microsoft"

    def _run(self, *inputs: Any, **_: Any) -> Any:
        node = onnx.NodeProto()
        node.CopyFrom(self.onnx_node)
        node.input[:] = [f"in{i}" if x is not None else "" for i, x in enumerate(inputs)]
        given = {n: x for n, x in zip(node.input, inputs, strict=True) if n}
        infos = [value_info(n, TensorProto.FLOAT, None) for n in given]
        made = [value_info(n, TensorProto.FLOAT, None) for n in node.output if n]
        opsets = [make_opsetid("", 20), make_opsetid("com.microsoft", 1)]
        model = make_model(make_graph([node], "one", infos, made), opset_imports=opsets)
        model.ir_version = 10
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        found = iter(session.run(None, given))
        return tuple(next(found) if name else None for name in node.output)


_OPERATORS = [
    RestorePadding,
    PackedMultiHeadAttention,
    *(type(name, (OnCpu,), {}) for name in ("SkipLayerNormalization", "BiasGelu", "FastGelu")),
]


class PackedSession:
    """What an `InferenceSession` answers, of a packed graph in float32."""

    def __init__(self, graph: onnx.ModelProto) -> None:
        self._evaluator = ReferenceEvaluator(graph, new_ops=_OPERATORS)
        self._inputs, self._outputs = graph.graph.input, graph.graph.output
        self.runs = 0

    def get_inputs(self) -> list[Any]:
        return [_Value(value) for value in self._inputs]

    def get_outputs(self) -> list[Any]:
        return [_Value(value) for value in self._outputs]

    def run(self, names: list[str], feeds: dict[str, Any]) -> list[Any]:
        self.runs += 1
        return self._evaluator.run(names, feeds)


class _Value:
    def __init__(self, value: onnx.ValueInfoProto) -> None:
        self.name = value.name
        dims = value.type.tensor_type.shape.dim
        self.shape = [d.dim_param or d.dim_value for d in dims]


class Uncapturable:
    """A session where capturing fails, with the error that onnxruntime raises for bound buffers."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        if options.get_run_config_entry("gpu_graph_id") != "-1":
            raise RuntimeError("Error in execution: not permitted when stream is capturing")
        self.session.run_with_iobinding(binding, options)
