"""Physical removal of attention heads, and the gates that define what it must be equal to.

Removing head h of a layer deletes h's rows of the query, key and value projections and h's
columns of the output projection. The gated model multiplies h's slice of the output projection's
input by zero instead; both compute the same function, which `verify_surgery` checks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from compressor.errors import VerificationError
from compressor.model.architectures import architecture
from compressor.model.sublayers import Mask, Sublayer
from compressor.results import Check

Hook = Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]
# Both models sum the same products in another order: single precision differs by about 1e-6.
SURGERY_TOLERANCE = 1e-4


class OutputBias(nn.Module):
    """Stands in for the output projection of a layer without heads: its bias is what remains."""

    def __init__(self, projection: nn.Linear) -> None:
        super().__init__()
        self.width = projection.out_features
        self.bias = projection.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, tokens, any] -> [batch, tokens, width], the same vector everywhere."""
        if self.bias is None:
            return hidden.new_zeros((*hidden.shape[:-1], self.width))
        return self.bias.expand(*hidden.shape[:-1], self.width)


class NoHeads(nn.Module):
    """Stands in for the attention block of a layer without heads.

    A decoder's self-attention still tells the key/value cache how many tokens it has seen, in
    one zero per token, because `generate` reads the length of the past from the first layer.
    """

    def __init__(self, layer: Sublayer) -> None:
        super().__init__()
        self.kind = layer.kind
        self.index = layer.index

    def forward(
        self, hidden_states: Tensor, *args: object, past_key_values: Any = None, **kwargs: object
    ) -> tuple[Tensor, None]:
        if self.kind == "decoder_self" and past_key_values is not None:
            cache = getattr(past_key_values, "self_attention_cache", past_key_values)
            length = hidden_states.new_zeros((hidden_states.shape[0], 1, hidden_states.shape[1], 1))
            cache.update(length, length, self.index)
        projection = next(self.children(), None)  # the OutputBias, where the block holds it
        return (hidden_states if projection is None else projection(hidden_states)), None


def remove_heads(model: nn.Module, layers: Sequence[Sublayer], mask: Mask) -> None:
    """Remove every head that `mask` does not keep, in place; whole layers included."""
    entry = architecture(model.config.model_type)  # type: ignore[union-attr,arg-type]
    paths = {found.kind: found for found in entry.sublayers}
    for layer in layers:
        kept = mask.kept(layer.name)
        if not kept:
            _empty_layer(model, layer)
        elif len(kept) < layer.units:
            _slice_layer(model, layer, kept)
            block = model.get_submodule(layer.block)
            setattr(block, paths[layer.kind].unit_count, len(kept))
            width = paths[layer.kind].width
            if width is not None:
                setattr(block, width, len(kept) * layer.unit_width)


def _slice_layer(model: nn.Module, layer: Sublayer, kept: list[int]) -> None:
    columns = unit_columns(kept, layer.unit_width)
    for path in layer.inputs.values():
        old = _linear(model, path)
        bias = None if old.bias is None else old.bias[columns]
        _replace(model, path, _linear_from(old.weight[columns], bias))
    old = _linear(model, layer.output)
    _replace(model, layer.output, _linear_from(old.weight[:, columns], old.bias))


def _empty_layer(model: nn.Module, layer: Sublayer) -> None:
    bias = OutputBias(_linear(model, layer.output))
    headless = NoHeads(layer)
    _replace(model, layer.block, headless)
    if layer.output.startswith(layer.block + "."):
        headless.add_module(layer.output.removeprefix(layer.block + "."), bias)
    else:
        _replace(model, layer.output, bias)


def unit_columns(units: Sequence[int], unit_width: int) -> Tensor:
    """Positions of some units in the output projection's input, [units x unit_width]."""
    starts = torch.tensor(list(units), dtype=torch.long)[:, None] * unit_width  # [units, 1]
    return (starts + torch.arange(unit_width)).flatten()


def _linear(model: nn.Module, path: str) -> nn.Linear:
    module = model.get_submodule(path)
    assert isinstance(module, nn.Linear), path
    return module


def _linear_from(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    linear = nn.Linear(
        weight.shape[1], weight.shape[0], bias=bias is not None, device="meta", dtype=weight.dtype
    )
    linear.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone())
    return linear


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    module.train(model.training)
    setattr(model.get_submodule(parent), name, module)


def prune(model: nn.Module, layers: Sequence[Sublayer], mask: Mask) -> nn.Module:
    """A copy of `model` without the heads that `mask` removes."""
    pruned = copy.deepcopy(model)
    remove_heads(pruned, layers, mask)
    return pruned


@contextmanager
def gated(
    model: nn.Module, layers: Sequence[Sublayer], gates: Mapping[str, Tensor]
) -> Iterator[None]:
    """Multiply each head's output by its gate while the context lasts.

    Args:
        gates: layer name -> [heads] multipliers; layers without an entry stay as they are.
    """
    handles = []
    for layer in layers:
        if layer.name in gates:
            hook = _gate_hook(gates[layer.name], layer.unit_width)
            handles.append(model.get_submodule(layer.output).register_forward_pre_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _gate_hook(gate: Tensor, unit_width: int) -> Hook:
    def multiply(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        units = inputs[0].unflatten(-1, (-1, unit_width))  # [batch, tokens, units, unit_width]
        return ((units * gate.to(units)[:, None]).flatten(-2), *inputs[1:])

    return multiply


def mask_gates(mask: Mask) -> dict[str, Tensor]:
    """The mask as gates of 0 and 1, only for layers that lose heads."""
    return {
        name: torch.tensor(flags, dtype=torch.float32)
        for name, flags in mask.keep.items()
        if not all(flags)
    }


@torch.no_grad()
def verify_surgery(
    dense: nn.Module,
    pruned: nn.Module,
    layers: Sequence[Sublayer],
    mask: Mask,
    batches: Sequence[Mapping[str, Tensor]],
) -> Check:
    """Compare the pruned model's logits with the gated dense model's on ragged batches.

    Args:
        batches: model inputs (without labels), best of unequal lengths with padding.

    Returns:
        The largest difference relative to the largest logit.

    Raises:
        VerificationError: the difference exceeds `SURGERY_TOLERANCE`.
    """
    dense.eval(), pruned.eval()
    differences = []
    for batch in batches:
        with gated(dense, layers, mask_gates(mask)):
            expected = dense(**batch).logits
        actual = pruned(**batch).logits
        differences.append(relative_difference(actual, expected))
    worst = float(torch.tensor(differences).max())  # NaN wins, unlike with Python's max
    if not worst <= SURGERY_TOLERANCE:
        raise VerificationError(
            f"the pruned model differs from the masked one by {worst:.2e} of the largest logit "
            f"(tolerance {SURGERY_TOLERANCE:.0e}); please report this with the checkpoint's name"
        )
    return Check(
        name="pruned equals masked",
        largest_difference=worst,
        tolerance=SURGERY_TOLERANCE,
        detail=f"logits of {len(batches)} ragged batches, relative to the largest logit",
    )


def relative_difference(actual: Tensor, expected: Tensor) -> float:
    """max |actual - expected| / max |expected|; NaN if either holds one."""
    return float((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-12))
