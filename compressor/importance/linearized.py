"""A model whose gradient is that of its linear part: what is not linear is a constant factor.

See `compressor.importance.relevance` for what these factors are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from compressor.model.architectures import find_sublayers


@contextmanager
def linearized(model: nn.Module) -> Iterator[None]:
    """The same outputs within the context, with such gradients."""
    from transformers.activations import ACT2CLS

    kinds: Any = tuple(
        entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()
    )
    handles = []
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            handles.append(module.register_forward_hook(_fixed_norm))
        elif isinstance(module, kinds):
            handles.append(module.register_forward_hook(_activate))
    # Of all attention, also where neurons alone are scored.
    for layer in filter(lambda x: x.is_attention, find_sublayers(model)):
        for path in (layer.inputs["query"], layer.inputs["key"]):
            handles.append(model.get_submodule(path).register_forward_hook(_detach))
    try:
        with _LinearTanh():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _fixed_norm(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    assert isinstance(module, nn.LayerNorm)
    centered = inputs[0] - inputs[0].mean(-1, keepdim=True)
    deviation = (centered.detach().square().mean(-1, keepdim=True) + module.eps).sqrt()
    scaled = centered / deviation
    if module.weight is not None:
        scaled = scaled * module.weight
    return scaled if module.bias is None else scaled + module.bias


def _activate(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return _pass_through(inputs[0], output)


def _pass_through(x: Tensor, y: Tensor) -> Tensor:
    """y as x times a constant."""
    return x * torch.where(x == 0, 0, y / x).detach()


def _detach(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.detach()


class _LinearTanh(TorchFunctionMode):
    """RoBERTa's classification head calls tanh as a function, out of the reach of hooks."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return _pass_through(args[0], result) if func is torch.tanh else result
