"""The precision of products in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

Precision = Literal["fp32", "bf16"]


def has_bf16(device: str) -> bool:
    """Whether a device has instructions for products in bfloat16."""
    if torch.device(device).type != "cpu":
        return True
    # oneDNN takes AVX-512 alone for enough, and then computes them much more slowly than float32.
    has_avx512 = torch.cpu._is_avx512_supported()
    has_products = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    supported = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return supported and (has_products or not has_avx512)


@contextmanager
def products_in(precision: Precision, device: str) -> Iterator[None]:
    """Compute products in a precision within the context.

    On CPUs attention itself stays in float32: the backward pass of fused attention takes ten times
    as long in bfloat16 there.

    Args:
        precision: of products; weights stay in float32.
        device: where the model is.
    """
    if precision == "fp32":
        yield
        return
    kind = torch.device(device).type
    # On a GPU without cuDNN's kernel, which is planned anew for each shape.
    others = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    attention = _AttentionInFloat32() if kind == "cpu" else sdpa_kernel(others)
    with torch.autocast(kind, torch.bfloat16), attention:
        yield


class _AttentionInFloat32(TorchFunctionMode):
    """Computes fused attention in float32, whatever autocast says."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        with torch.autocast("cpu", enabled=False):
            named = {name: _wide(value) for name, value in (kwargs or {}).items()}
            return func(*map(_wide, args), **named)


def _wide(value: Any) -> Any:
    """A tensor of bfloat16 in float32; anything else as it is."""
    half = isinstance(value, Tensor) and value.dtype == torch.bfloat16
    return value.float() if half else value
