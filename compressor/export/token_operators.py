"""The choice of tokens in graphs: operators of ours for the tracer, a few nodes in ONNX.

The tracer cannot prove that a share of the tokens is no more than all of them, so the number of
tokens that are chosen is a new size to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from compressor.model import modeling_kept
from compressor.model.modeling_kept import TENTHS

_most_significant, _first_numbers = modeling_kept.most_significant, modeling_kept.first_numbers
_rows_at = modeling_kept.rows_at


@torch.library.custom_op("compress::most_significant", mutates_args=())
def most_significant(ranks: Tensor, numbers: Tensor, tenths: int) -> Tensor:
    """Stands for `modeling_kept.most_significant` in a graph."""
    return _most_significant(ranks, numbers, tenths).clone()


@most_significant.register_fake
def _(ranks: Tensor, numbers: Tensor, tenths: int) -> Tensor:
    chosen = torch.library.get_ctx().new_dynamic_size(min=1)
    return ranks.new_empty((ranks.shape[0], chosen), dtype=torch.long)


@torch.library.custom_op("compress::first_numbers", mutates_args=())
def first_numbers(numbers: Tensor, slots: Tensor, tenths: int) -> Tensor:
    """Stands for `modeling_kept.first_numbers` in a graph."""
    return _first_numbers(numbers, slots, tenths).clone()


@first_numbers.register_fake
def _(numbers: Tensor, slots: Tensor, tenths: int) -> Tensor:
    return numbers.new_empty((1, slots.shape[1]))


@torch.library.custom_op("compress::rows_at", mutates_args=())
def rows_at(states: Tensor, slots: Tensor) -> Tensor:
    """Stands for `modeling_kept.rows_at` in a graph."""
    return _rows_at(states, slots)


@rows_at.register_fake
def _(states: Tensor, slots: Tensor) -> Tensor:
    return states.new_empty((*slots.shape, states.shape[2]))


def _chosen_in_onnx(op: Any, numbers: Any, tenths: int) -> Any:
    """How many tokens are chosen of the longest row, [1] int64."""
    if tenths == 0:
        return op.Constant(value_ints=[1])
    tokens = op.Shape(numbers, start=1, end=2)
    rounded_up = op.Add(
        op.Mul(tokens, op.Constant(value_ints=[tenths])),
        op.Constant(value_ints=[TENTHS - 1]),
    )
    return op.Div(rounded_up, op.Constant(value_ints=[TENTHS]))


def _most_significant_in_onnx(ranks: Any, numbers: Any, tenths: int) -> Any:
    """`TopK` puts the first of equal values first, too."""
    from onnxscript import opset20

    op: Any = opset20
    return op.TopK(ranks, _chosen_in_onnx(op, numbers, tenths), axis=1)[1]


def _first_numbers_in_onnx(numbers: Any, slots: Any, tenths: int) -> Any:
    """By the number that `TopK` gets, which is computed once in a session."""
    from onnxscript import opset20

    op: Any = opset20
    ends = _chosen_in_onnx(op, numbers, tenths)
    return op.Slice(numbers, op.Constant(value_ints=[0]), ends, op.Constant(value_ints=[1]))


def _rows_at_in_onnx(states: Any, slots: Any) -> Any:
    from onnxscript import opset20

    op: Any = opset20
    places = op.Unsqueeze(slots, op.Constant(value_ints=[2]))
    return op.GatherND(states, places, batch_dims=1)


TOKEN_OPERATORS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.compress.most_significant.default: _most_significant_in_onnx,
    torch.ops.compress.first_numbers.default: _first_numbers_in_onnx,
    torch.ops.compress.rows_at.default: _rows_at_in_onnx,
}


@contextmanager
def selecting_in_graphs() -> Iterator[None]:
    """Let layers that hand on fewer tokens choose them by these operators, within the context."""
    try:
        modeling_kept.most_significant = most_significant
        modeling_kept.first_numbers = first_numbers
        modeling_kept.rows_at = rows_at
        yield
    finally:
        modeling_kept.most_significant = _most_significant
        modeling_kept.first_numbers = _first_numbers
        modeling_kept.rows_at = _rows_at
