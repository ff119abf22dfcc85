"""Physical removal of units, and the gates that define what it must be equal to.

Removing a unit of a sublayer deletes its rows of the projections that feed it (of a head: query,
key and value; of a neuron: the projection up) and its columns of the output projection. The gated
model multiplies the unit's slice of the output projection's input by zero instead; both compute the
same function, which `verify_surgery` checks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from compressor.errors import VerificationError
from compressor.model.architectures import SublayerPaths, architecture
from compressor.model.sublayers import Mask, Sublayer
from compressor.results import Check

Hook = Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]
# Both models sum the same products in another order: single precision differs by about 1e-6.
SURGERY_TOLERANCE = 1e-4


class OutputBias(nn.Module):
    """Replaces the output projection of a sublayer without units: its bias is what remains."""

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
    """Replaces the block of an attention without heads.

    A decoder's self-attention still tells the key/value cache how many tokens it has seen, in
    one zero per token, because `generate` reads the length of the past from the first layer.
    """

    def __init__(self, sublayer: Sublayer) -> None:
        super().__init__()
        self.kind = sublayer.kind
        self.index = sublayer.index

    def forward(
        self, hidden_states: Tensor, *args: object, past_key_values: Any = None, **kwargs: object
    ) -> tuple[Tensor, None]:
        if self.kind == "decoder_self" and past_key_values is not None:
            cache = getattr(past_key_values, "self_attention_cache", past_key_values)
            batch, tokens, _ = hidden_states.shape
            length = hidden_states.new_zeros((batch, 1, tokens, 1))  # one head of width 1
            cache.update(length, length, self.index)
        # The OutputBias, where it is inside the block; elsewhere it follows and ignores its input.
        projection = next(self.children(), None)
        return (hidden_states if projection is None else projection(hidden_states)), None


STAND_INS: dict[str, Callable[[Sublayer], nn.Module]] = {
    "attention": NoHeads,
    "feed_forward": lambda sublayer: nn.Identity(),  # the OutputBias that follows ignores its input
}


def prune(model: nn.Module, sublayers: Sequence[Sublayer], mask: Mask) -> nn.Module:
    """A copy of `model` without the units that `mask` removes."""
    pruned = copy.deepcopy(model)
    remove_units(pruned, sublayers, mask)
    return pruned


def remove_units(model: nn.Module, sublayers: Sequence[Sublayer], mask: Mask) -> None:
    """Remove every unit that `mask` does not keep, in place; whole sublayers included."""
    entry = architecture(model.config.model_type)  # type: ignore[union-attr,arg-type]
    paths = {paths.kind: paths for paths in entry.sublayers}
    for sublayer in sublayers:
        kept = mask.kept(sublayer.name)
        if not kept:
            _empty(model, sublayer, paths[sublayer.kind])
        elif len(kept) < sublayer.units:
            _slice(model, sublayer, paths[sublayer.kind], kept)


def _slice(model: nn.Module, sublayer: Sublayer, paths: SublayerPaths, kept: list[int]) -> None:
    for role, path in sublayer.inputs.items():
        old, rows = _linear(model, path), input_rows(sublayer, role, kept)
        bias = None if old.bias is None else old.bias[rows]
        _replace(model, path, _linear_from(old.weight[rows], bias))
    old, columns = _linear(model, sublayer.output), unit_columns(kept, sublayer.unit_width)
    _replace(model, sublayer.output, _linear_from(old.weight[:, columns], old.bias))
    block = model.get_submodule(sublayer.block)
    if paths.unit_count is not None:
        setattr(block, paths.unit_count, len(kept))
    if paths.width is not None:
        setattr(block, paths.width, len(kept) * sublayer.unit_width)


def _empty(model: nn.Module, sublayer: Sublayer, paths: SublayerPaths) -> None:
    bias = OutputBias(_linear(model, sublayer.output))
    stand_in = STAND_INS[paths.stand_in](sublayer)
    _replace(model, sublayer.block, stand_in)
    if sublayer.output.startswith(sublayer.block + "."):
        stand_in.add_module(sublayer.output.removeprefix(sublayer.block + "."), bias)
    else:
        _replace(model, sublayer.output, bias)


def unit_columns(units: Sequence[int], unit_width: int) -> Tensor:
    """Positions of some units in the output projection's input, [units x unit_width]."""
    starts = torch.tensor(list(units), dtype=torch.long)[:, None] * unit_width  # [units, 1]
    return (starts + torch.arange(unit_width)).flatten()


def input_rows(sublayer: Sublayer, role: str, units: Sequence[int]) -> Tensor:
    """Rows of the input projection of a role that belong to some units, [rows].

    The same positions as in the output projection's input, in all architectures so far. Where one
    projection holds several roles, or several queries share a key, they would differ by role.
    """
    return unit_columns(units, sublayer.unit_width)


def _linear(model: nn.Module, path: str) -> nn.Linear:
    module = model.get_submodule(path)
    assert isinstance(module, nn.Linear), path
    return module


def _linear_from(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    # On "meta", where nothing is allocated or drawn at random; the weights replace it at once.
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


@contextmanager
def gated(
    model: nn.Module, sublayers: Sequence[Sublayer], gates: Mapping[str, Tensor]
) -> Iterator[None]:
    """Multiply each unit's slice by its gate while the context lasts.

    Args:
        gates: sublayer name -> [units] multipliers; sublayers without an entry stay as they are.
    """
    handles = []
    for sublayer in sublayers:
        if sublayer.name in gates:
            hook = _gate_hook(gates[sublayer.name], sublayer.unit_width)
            handles.append(model.get_submodule(sublayer.output).register_forward_pre_hook(hook))
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
    """The mask as gates of 0 and 1, [units] each, for the sublayers that lose units."""
    return {
        name: torch.tensor(flags, dtype=torch.float32)
        for name, flags in mask.keep.items()
        if not all(flags)
    }


@torch.no_grad()
def verify_surgery(
    dense: nn.Module,
    pruned: nn.Module,
    sublayers: Sequence[Sublayer],
    mask: Mask,
    batches: Sequence[Mapping[str, Tensor]],
) -> Check:
    """Compare the pruned model's logits with the gated dense model's on ragged batches.

    Args:
        batches: model inputs (without labels), preferably of unequal lengths with padding.

    Returns:
        The largest difference relative to the largest logit.

    Raises:
        VerificationError: the difference exceeds `SURGERY_TOLERANCE`.
    """
    dense.eval(), pruned.eval()
    differences = []
    for batch in batches:
        with gated(dense, sublayers, mask_gates(mask)):
            expected = dense(**batch).logits
        actual = pruned(**batch).logits
        differences.append(relative_difference(actual, expected))
    worst = float(torch.tensor(differences).max())  # NaN wins, unlike with Python's max
    if not worst <= SURGERY_TOLERANCE:
        raise VerificationError(
            f"the pruned model differs from the masked one by {worst:.2e} of the largest logit "
            f"(tolerance {SURGERY_TOLERANCE:.0e}); please report this with the checkpoint's name",
            id="pruned-differs-from-masked",
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
