"""Training with products in bfloat16; weights, gradients, sums and losses stay in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

Precision = Literal["fp32", "bf16"]


def has_bf16(device: str) -> bool:
    """Whether a device has instructions for products in bfloat16."""
    on_cpu = torch.device(device).type == "cpu"
    return not on_cpu or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@contextmanager
def products_in(precision: Precision, device: str) -> Iterator[None]:
    """Compute products in a precision within the context.

    On CPUs attention stays in float32: PyTorch's backward pass of fused attention takes ten times
    as long in bfloat16 there.
    """
    if precision == "fp32":
        yield
        return
    kind = torch.device(device).type
    attention = _AttentionInFloat32() if kind == "cpu" else nullcontext()
    with torch.autocast(kind, torch.bfloat16), attention:
        yield


class _AttentionInFloat32(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        with torch.autocast("cpu", enabled=False):
            named = {name: _wide(value) for name, value in (kwargs or {}).items()}
            return func(*map(_wide, args), **named)


def _wide(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype == torch.bfloat16
    return value.float() if half else value
