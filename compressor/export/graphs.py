"""From a PyTorch module to an ONNX graph with dynamic batch and lengths."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from copy import copy
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
# What the exporter takes numbers for.
_NUMBERS: dict[type, torch.dtype] = {
    bool: torch.bool, int: torch.int64, float: torch.float32,
    torch.SymBool: torch.bool, torch.SymInt: torch.int64, torch.SymFloat: torch.float32,
}  # fmt: skip
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
    and dropped. A process makes the exporter's tables of all operators and of their decompositions
    once, too, and graphs whose operators get one type each are not run again to convert types. Of
    the export of a small graph that is a sixth, and a fourth.
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
        from torch.onnx._internal.exporter import _decomp, _registration

        registry, table = _registration.ONNXRegistry, "create_onnx_friendly_decomposition_table"
        replaced.append((registry, "from_torchlib", _registry_made_once(registry.from_torchlib)))
        replaced.append((_decomp, table, _table_made_once(getattr(_decomp, table))))
    with contextlib.suppress(ImportError, AttributeError):
        from torch.onnx._internal.exporter import _fx_passes

        insert = _fx_passes.insert_type_promotion_nodes
        replaced.append((_fx_passes, "insert_type_promotion_nodes", _where_needed(insert)))
    with contextlib.ExitStack() as stack:
        for owner, name, new in replaced:
            known = getattr(owner, name, None)
            if known is not None:
                setattr(owner, name, new)
                stack.callback(setattr, owner, name, known)
        yield


@cache
def _registry_made_once(usual: Callable[..., Any]) -> staticmethod[..., Any]:
    """`ONNXRegistry.from_torchlib` that makes copies, since each export adds its own operators."""
    made = cache(usual)

    def copied(*args: Any, **kwargs: Any) -> Any:
        registry = copy(made(*args, **kwargs))
        registry.functions = {name: list(known) for name, known in registry.functions.items()}
        return registry

    return staticmethod(copied)  # it is also called by its name on an instance


@cache
def _table_made_once(usual: Callable[..., Any]) -> Callable[..., Any]:
    """The table of decompositions of all operators but those that have translations."""
    made = cache(lambda translated: usual(set(translated)))
    return lambda translated: dict(made(frozenset(translated)))


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


def _where_needed(insert: Callable[[Any], None]) -> Callable[[Any], None]:
    """The exporter's pass that inserts conversions of types, for programs that need one."""

    def insert_if_needed(module: torch.fx.GraphModule) -> None:
        if any(map(_converts_types, module.graph.nodes)):
            insert(module)

    return insert_if_needed


def _converts_types(node: torch.fx.Node) -> bool:
    """Whether the exporter would convert arguments of a node, by its own table; or cannot tell."""
    from torch.onnx._internal.fx.passes import type_promotion

    rule = type_promotion.get_type_promotion_rule(node, _promotion_table())
    if rule is None:
        return False
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda x: x.meta["val"])
    wanted = rule.preview_type_promotion(args, kwargs)
    pairs = [(value, wanted.args_dtypes.get(i)) for i, value in enumerate(args)]
    pairs += [(value, wanted.kwargs_dtypes.get(name)) for name, value in kwargs.items()]
    return any(dtype is not None and _dtypes(value) != {dtype} for value, dtype in pairs)


@cache
def _promotion_table() -> Any:
    from torch.onnx._internal.fx.passes import type_promotion

    return type_promotion.TypePromotionTable()


def _dtypes(value: Any) -> set[torch.dtype | None]:
    """Of a tensor, a number, or several; None of what else an operator may take."""
    if isinstance(value, torch.Tensor):
        return {value.dtype}
    if isinstance(value, list | tuple):
        return set().union(*map(_dtypes, value))
    return {_NUMBERS.get(type(value))}


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
