"""The choice of tokens in graphs: one operator of ours for the tracer, a few nodes in ONNX.

The tracer cannot prove that a share of the tokens is no more than all of them, so the number of
tokens that are chosen is a new size to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from compressor.model import modeling_selection
from compressor.model.modeling_selection import TENTHS


@torch.library.custom_op("compress::most_significant", mutates_args=())
def most_significant(ranks: Tensor, whole: Tensor, tenths: int) -> Tensor:
    """As `modeling_selection.most_significant`, which it stands for in a graph."""
    return _usual(ranks, whole, tenths).clone()


_usual = modeling_selection.most_significant


@most_significant.register_fake
def _(ranks: Tensor, whole: Tensor, tenths: int) -> Tensor:
    chosen = torch.library.get_ctx().new_dynamic_size(min=1)
    return ranks.new_empty((ranks.shape[0], chosen), dtype=torch.long)


def most_significant_in_onnx(ranks: Any, whole: Any, tenths: int) -> Any:
    """Nodes of ONNX for `most_significant`; `TopK` puts the first of equal values first."""
    from onnxscript import opset20 as op

    if tenths == 0:
        chosen = op.Constant(value_ints=[1])
    else:
        tokens = op.Shape(whole, start=1, end=2)
        rounded_up = op.Add(
            op.Mul(tokens, op.Constant(value_ints=[tenths])),
            op.Constant(value_ints=[TENTHS - 1]),
        )
        chosen = op.Div(rounded_up, op.Constant(value_ints=[TENTHS]))
    return op.TopK(ranks, chosen, axis=1)[1]


@contextmanager
def selecting_in_graphs() -> Iterator[None]:
    """Let layers that hand on fewer tokens choose them by the operator, within the context."""
    modeling_selection.most_significant = most_significant
    try:
        yield
    finally:
        modeling_selection.most_significant = _usual
