"""From a PyTorch module to an ONNX graph with dynamic batch and lengths."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import onnx_ir
import torch
from torch import nn
from torch._ops import OpOverload
from torch.export import ExportedProgram

from compressor.export.token_operators import TOKEN_OPERATORS

OPSET = 20  # Gelu is one node from 20 on; older runtimes cannot read newer graphs
# Weights are in a file beside the graph: written one by one, they are not in memory several times,
# as while one protobuf message is made of them. Loaders of optimum know the name.
WEIGHTS_SUFFIX = "_data"
INLINE_BYTES = 1024  # weights up to this size stay in the graph's own file

BATCH = torch.export.Dim("batch", min=1)
SOURCE = torch.export.Dim("source", min=1)
PAST = torch.export.Dim("past", min=0)

_aten = torch.ops.aten
_ASSERTIONS = frozenset({_aten._assert_scalar.default, _aten._assert_tensor_metadata.default})
_CONVERSIONS = frozenset({_aten.to.dtype, _aten.to.dtype_layout, _aten.to.device})


def export_graph(
    graph: nn.Module,
    example: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    shapes: dict[str, Any],
    path: Path,
) -> None:
    """Export one graph, without the exporter's own output.

    Args:
        graph: the module.
        example: inputs to trace with; the tracer takes a size of 0 or 1 for fixed.
        inputs: names of the graph's inputs.
        outputs: names of its outputs.
        shapes: for each input its dynamic dimensions, as `torch.onnx.export` takes them.
        path: the graph's file; its weights are beside it.
    """
    from torch._dynamo import config as tracing

    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    exporter_log.setLevel(logging.ERROR)
    # With dynamic shapes the tracer's cache costs more time than it saves.
    uncached = tracing.patch(fake_tensor_cache_enabled=False)
    quiet = contextlib.redirect_stdout(io.StringIO())
    try:
        with warnings.catch_warnings(), quiet, uncached, quick_exporter(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                graph.eval(),
                example,
                dynamo=True,
                opset_version=OPSET,
                input_names=inputs,
                output_names=outputs,
                dynamic_shapes=shapes,
                custom_translation_table=TRANSLATIONS | TOKEN_OPERATORS,
                optimize=True,
                verbose=False,
            )
    finally:
        exporter_log.setLevel(level)
    assert program is not None
    names = [value.name for value in (*program.model.graph.inputs, *program.model.graph.outputs)]
    assert names == inputs + outputs  # the exporter renames values that it merges
    _strip_traces(program.model)
    weights = path.name + WEIGHTS_SUFFIX
    onnx_ir.save(program.model, path, external_data=weights, size_threshold_bytes=INLINE_BYTES)


def _strip_traces(model: Any) -> None:
    """Drop stack traces and module names, which differ between machines: same model, same bytes."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


@contextlib.contextmanager
def quick_exporter() -> Iterator[None]:
    """Inside this context, programs are not decomposed, unless an operator needs it.

    What ONNX lacks are mostly conversions of types and assertions about shapes, which are rewritten
    and dropped. A process makes the exporter's table of all operators once, too.
    """
    usual = getattr(ExportedProgram, "run_decompositions", None)

    def decompose(
        program: ExportedProgram, decomp_table: Any = None, *args: Any, **kwargs: Any
    ) -> ExportedProgram:
        assert usual is not None
        if decomp_table is not None and _simplify(program, decomp_table):
            return program
        return usual(program, decomp_table, *args, **kwargs)

    replaced: list[tuple[Any, str, Any]] = [(ExportedProgram, "run_decompositions", decompose)]
    with contextlib.suppress(ImportError, AttributeError):
        from torch.onnx._internal.exporter._registration import onnxscript_apis as tables

        replaced.append((tables, "get_torchlib_ops", _made_once(tables.get_torchlib_ops)))
    with contextlib.ExitStack() as stack:
        for owner, name, new in replaced:
            known = getattr(owner, name, None)
            if known is not None:
                setattr(owner, name, new)
                stack.callback(setattr, owner, name, known)
        yield


_made_once = cache(cache)  # a function without arguments -> the same, computed once a process


def _simplify(program: ExportedProgram, rules: Container[Any]) -> bool:
    """Rewrite a program in place, so that its operators have translations.

    Returns:
        Whether all of them have one then. ONNX has none of those that change their inputs, nor of
        those with rules.
    """
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
    operators = [node.target for node in graph.nodes if isinstance(node.target, OpOverload)]
    return not any(x._schema.is_mutable or x in rules for x in operators)


def _unflatten(self: Any, dim: int, sizes: Sequence[int]) -> Any:
    """Reshape […, n] to […, *sizes]; in ONNX a zero keeps a dimension, so no size is computed."""
    from onnxscript import opset20

    before = len(self.shape) - 1
    assert dim in (-1, before)
    shape: Any = opset20.Constant(value_ints=[0] * before + list(sizes))
    return opset20.Reshape(self, shape)


def _flatten(self: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Reshape […, m, n] to […, m x n]."""
    from onnxscript import opset20

    before = len(self.shape) - 2
    assert start_dim in (-2, before)
    assert end_dim in (-1, before + 1)
    shape: Any = opset20.Constant(value_ints=[0] * before + [-1])
    return opset20.Reshape(self, shape)


# `torch.onnx.export` would compute sizes in the graph. Only our own attention uses these.
TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    _aten.unflatten.int: _unflatten,
    _aten.flatten.using_ints: _flatten,
}
