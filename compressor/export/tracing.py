"""Handing a traced model to PyTorch's ONNX exporter without tracing it a second time.

`torch.onnx.export` traces the model into a program of ATen operators, and then traces that program
again, to decompose operators that it has no ONNX function for. With dynamic shapes this second pass
takes about half of the whole time. Our graphs hardly need it: what is not in ONNX's reach are
conversions of types and assertions about shapes, which are rewritten and dropped here. Of the rest
a fifth goes into a table of ONNX functions, which stays the same, and a fifth into looking for
operands of different types, which a look at the types shows not to be there.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram

_aten = torch.ops.aten
# Operators without side effects that the exporter translates as they are.
_TRANSLATED = frozenset({
    operator.add, operator.getitem, torch.sym_min, _aten.sym_size.int, _aten.add.Tensor,
    _aten.amax.default, _aten.arange.default, _aten.arange.start, _aten.argmax.default,
    _aten.cat.default, _aten.cumsum.default, _aten.dropout.default, _aten.embedding.default,
    _aten.expand.default, _aten.flatten.using_ints, _aten.gather.default, _aten.gelu.default,
    _aten.gt.Tensor, _aten.layer_norm.default, _aten.linear.default, _aten.matmul.default,
    _aten.mul.Tensor, _aten.ne.Scalar, _aten.relu.default, _aten.reshape.default, _aten.select.int,
    _aten.silu.default, _aten.slice.Tensor, _aten.softmax.int, _aten.split.Tensor,
    _aten.split_with_sizes.default, _aten.sub.Tensor, _aten.tanh.default, _aten.transpose.int,
    _aten.type_as.default, _aten.unflatten.int, _aten.unsqueeze.default, _aten.zeros.default,
    _aten._to_copy.default,
})  # fmt: skip
_ASSERTIONS = frozenset({_aten._assert_scalar.default, _aten._assert_tensor_metadata.default})
# Those that first bring their operands to one type.
_PROMOTING = frozenset({
    operator.add, _aten.add.Tensor, _aten.cat.default, _aten.cumsum.default, _aten.gelu.default,
    _aten.gt.Tensor, _aten.mul.Tensor, _aten.ne.Scalar, _aten.silu.default, _aten.softmax.int,
    _aten.sub.Tensor, _aten.tanh.default,
})  # fmt: skip
_COMPARING = frozenset({_aten.gt.Tensor, _aten.ne.Scalar})
_CONVERSIONS = frozenset({_aten.to.dtype, _aten.to.dtype_layout})


@contextmanager
def traced_once() -> Iterator[None]:
    """While it lasts, programs that need no decomposition are not traced again to decompose them.

    Programs with any other operator than those known here are decomposed as ever.
    """
    decompose = ExportedProgram.run_decompositions

    def unless_needless(program: ExportedProgram, *args: Any, **kwargs: Any) -> ExportedProgram:
        simplified = _simplify(program)
        return program if simplified else decompose(program, *args, **kwargs)

    with (
        _replaced(ExportedProgram, "run_decompositions", unless_needless),
        _functions_read_once(),
        _types_promoted_if_need_be(),
    ):
        yield


@contextmanager
def _functions_read_once() -> Iterator[None]:
    """While it lasts, the exporter copies its table of ONNX functions instead of making it anew."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry
    except ImportError:  # another PyTorch, where this takes as long as it takes
        yield
        return
    make = vars(ONNXRegistry)["from_torchlib"]

    def copied(cls: Any, *args: Any, **kwargs: Any) -> ONNXRegistry:
        table = _once(make.__func__, cls, *args, **kwargs)
        fresh: ONNXRegistry = copy.copy(table)  # translations of ours are added to its own lists
        fresh.functions = {target: list(found) for target, found in table.functions.items()}
        return fresh

    with _replaced(ONNXRegistry, "from_torchlib", classmethod(copied)):
        yield


@functools.cache
def _once(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return make(*args, **kwargs)


@contextmanager
def _types_promoted_if_need_be() -> Iterator[None]:
    """While it lasts, graphs whose operands have equal types are not searched for others."""
    try:
        from torch.onnx._internal.exporter import _fx_passes
    except ImportError:
        yield
        return
    promote = _fx_passes.insert_type_promotion_nodes

    def unless_needless(module: torch.fx.GraphModule) -> None:
        if not _is_promoted(module.graph):
            promote(module)

    with _replaced(_fx_passes, "insert_type_promotion_nodes", unless_needless):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _is_promoted(graph: torch.fx.Graph) -> bool:
    """Whether only operators known here are in it, on operands of the type that comes out."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target not in _TRANSLATED:
            return False
        if node.target in _PROMOTING and not _has_equal_types(node):
            return False
    return True


def _has_equal_types(node: torch.fx.Node) -> bool:
    tensors = [n.meta["val"].dtype for n in node.all_input_nodes if _is_tensor(n)]
    if not tensors:  # sizes
        return True
    result = tensors[0] if node.target in _COMPARING else node.meta["val"].dtype
    numbers = [n for n in node.args if isinstance(n, float)]
    return set(tensors) == {result} and (result.is_floating_point or not numbers)


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta["val"], torch.Tensor)


def _unflatten(self: Any, dim: int, sizes: Sequence[int]) -> Any:
    """[…, n] -> […, *sizes]; a zero stands for "as before", so no size is computed in the graph."""
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


def _simplify(program: ExportedProgram) -> bool:
    """Drop assertions and name conversions as the exporter knows them; whether that is enough."""
    graph = program.graph_module.graph
    for node in reversed(graph.nodes):
        if node.op == "call_function" and node.target in _ASSERTIONS:
            graph.erase_node(node)
        elif node.op == "call_function" and node.target in _CONVERSIONS:
            # Every form of `to` that is left converts to one type: devices play no part here.
            node.args, node.kwargs = node.args[:1], {"dtype": node.meta["val"].dtype}
            node.target = _aten._to_copy.default
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return all(node.target in _TRANSLATED for node in graph.nodes if node.op == "call_function")
