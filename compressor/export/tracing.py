"""Handing a traced model to PyTorch's ONNX exporter without tracing it a second time.

`torch.onnx.export` traces the model into a program of ATen operators, and then traces that program
again, to decompose operators that it has no ONNX function for. With dynamic shapes this second pass
takes about half of the CPU time of writing graphs; `benchmarks/export_time.py` times exports with
and without it. Our graphs hardly need it: what ONNX lacks are conversions of types and assertions
about shapes, which are rewritten and dropped here.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram

_aten = torch.ops.aten
# Operators without side effects that the exporter translates as they are.
_TRANSLATED = frozenset({
    operator.add, operator.getitem, operator.mul, operator.pow, operator.sub, torch.sym_min,
    _aten.sym_size.int, _aten.abs.default, _aten.add.Scalar, _aten.add.Tensor, _aten.amax.default,
    _aten.arange.default, _aten.arange.start, _aten.argmax.default, _aten.cat.default,
    _aten.chunk.default, _aten.clamp.default, _aten.clamp_min.default, _aten.contiguous.default,
    _aten.cos.default, _aten.cumsum.default, _aten.detach.default, _aten.div.Tensor,
    _aten.dropout.default, _aten.embedding.default, _aten.expand.default, _aten.expand_as.default,
    _aten.flatten.using_ints, _aten.gather.default, _aten.ge.Scalar, _aten.gelu.default,
    _aten.gt.Scalar, _aten.gt.Tensor, _aten.index.Tensor, _aten.index_select.default,
    _aten.layer_norm.default, _aten.linalg_vector_norm.default, _aten.linear.default,
    _aten.matmul.default, _aten.mean.dim, _aten.mul.Scalar, _aten.mul.Tensor, _aten.ne.Scalar,
    _aten.neg.default, _aten.new_zeros.default, _aten.permute.default, _aten.pow.Tensor_Scalar,
    _aten.relu.default, _aten.reshape.default, _aten.rsqrt.default, _aten.select.int,
    _aten.silu.default, _aten.sin.default, _aten.slice.Tensor, _aten.softmax.int,
    _aten.split.Tensor, _aten.split_with_sizes.default, _aten.squeeze.dim, _aten.stack.default,
    _aten.sub.Tensor, _aten.sum.dim_IntList, _aten.tanh.default, _aten.transpose.int,
    _aten.type_as.default, _aten.unflatten.int, _aten.unsqueeze.default, _aten.view.default,
    _aten.zeros.default, _aten._to_copy.default,
})  # fmt: skip
_ASSERTIONS = frozenset({_aten._assert_scalar.default, _aten._assert_tensor_metadata.default})
_CONVERSIONS = frozenset({_aten.to.dtype, _aten.to.dtype_layout, _aten.to.device})
# What the patched method takes in the versions of PyTorch that this was written for.
_PARAMETERS = ["self", "decomp_table", "decompose_custom_triton_ops"]


@contextmanager
def traced_once() -> Iterator[None]:
    """Inside this context, a program that needs no decomposition is not traced again for it.

    A program with any other operator than those known here is decomposed as usual. So is every
    program in a version of PyTorch whose method is another one: exporting then takes longer.
    """
    decompose = vars(ExportedProgram).get("run_decompositions")
    if decompose is None or list(inspect.signature(decompose).parameters) != _PARAMETERS:
        yield
        return

    def decompose_if_needed(program: ExportedProgram, *args: Any, **kwargs: Any) -> ExportedProgram:
        return program if _simplify(program) else decompose(program, *args, **kwargs)

    ExportedProgram.run_decompositions = decompose_if_needed  # type: ignore[method-assign]
    try:
        yield
    finally:
        ExportedProgram.run_decompositions = decompose  # type: ignore[method-assign]


def _simplify(program: ExportedProgram) -> bool:
    """Drop assertions and rewrite conversions of types; whether no decomposition is needed now."""
    graph = program.graph_module.graph
    for node in reversed(graph.nodes):
        if node.op == "call_function" and node.target in _ASSERTIONS:
            graph.erase_node(node)
        elif node.op == "call_function" and node.target in _CONVERSIONS:
            # What is left of each form of `to` is its type: these graphs name no devices.
            node.args, node.kwargs = node.args[:1], {"dtype": node.meta["val"].dtype}
            node.target = _aten._to_copy.default
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return all(node.target in _TRANSLATED for node in graph.nodes if node.op == "call_function")


def _unflatten(self: Any, dim: int, sizes: Sequence[int]) -> Any:
    """[…, n] -> […, *sizes]; in ONNX a zero keeps a dimension, so the graph computes no size."""
    from onnxscript import opset20

    before = len(self.shape) - 1
    if dim not in (-1, before):
        raise ValueError("only the last dimension can be unflattened")
    shape: Any = opset20.Constant(value_ints=[0] * before + list(sizes))
    return opset20.Reshape(self, shape)


def _flatten(self: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """[…, m, n] -> […, m x n]"""
    from onnxscript import opset20

    before = len(self.shape) - 2
    if start_dim not in (-2, before) or end_dim not in (-1, before + 1):
        raise ValueError("only the last two dimensions can be flattened")
    shape: Any = opset20.Constant(value_ints=[0] * before + [-1])
    return opset20.Reshape(self, shape)


# For `torch.onnx.export`, which would write these with sizes computed in the graph. Only this
# package's own attention uses them.
TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    _aten.unflatten.int: _unflatten,
    _aten.flatten.using_ints: _flatten,
}
