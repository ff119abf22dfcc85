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

import torch
from torch import Tensor, nn

from compressor.errors import VerificationError
from compressor.model.architectures import architecture_of
from compressor.model.depth import skip_layers, skipped
from compressor.model.modeling_pruned import (
    BIAS_TABLE,
    find_sublayer,
    keep_units,
    unit_columns,
    unit_rows,
)
from compressor.model.modes import hooks
from compressor.model.shared_copy import shared_copy
from compressor.model.sublayers import Mask, Sublayer
from compressor.results import Check

Hook = Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]
# Both models sum the same products in another order: single precision differs by about 1e-6.
SURGERY_TOLERANCE = 1e-4


def prune(model: nn.Module, sublayers: Sequence[Sublayer], mask: Mask) -> nn.Module:
    """A copy of `model` without the units that `mask` removes.

    Weights that lose nothing are those of `model`, not copies of them.
    """
    pruned = shared_copy(model)
    remove_units(pruned, sublayers, mask)
    return pruned


def remove_units(model: nn.Module, sublayers: Sequence[Sublayer], mask: Mask) -> None:
    """Remove every unit that `mask` does not keep from a model of the dense shape, in place."""
    entry = architecture_of(model)
    paths = {paths.kind: entry.full_paths(paths) for paths in entry.sublayers}
    for sublayer in sublayers:
        kept = mask.kept(sublayer.name)
        if len(kept) < sublayer.units and sublayer.layer not in mask.dropped:
            keep_units(model, find_sublayer(model, paths[sublayer.kind], sublayer.index), kept)
    skip_layers(model, sublayers, mask)


def restore_shape(
    dense: nn.Module, pruned: nn.Module, sublayers: Sequence[Sublayer], mask: Mask
) -> nn.Module:
    """A copy of `dense` with all the weights that `pruned` has, to score and prune it once more.

    It equals `pruned` when gated by `mask`; weights of removed units are the dense model's.

    Args:
        pruned: `dense` without the units that `mask` removes; its weights may have changed since.
    """
    restored = copy.deepcopy(dense)
    large = restored.state_dict()
    small = {name: value for name, value in pruned.state_dict().items() if name in large}
    weights = {**large, **small}

    def put_back(name: str, dimension: int, index: Tensor) -> None:
        if name in small:
            index = index.to(large[name].device)
            weights[name] = large[name].index_copy(dimension, index, small[name])

    for sublayer in sublayers:
        kept = mask.kept(sublayer.name)
        rows = unit_rows(kept, sublayer.unit_width, sublayer.units, sublayer.parts)
        for path in sublayer.inputs.values():
            put_back(f"{path}.weight", 0, rows)
            put_back(f"{path}.bias", 0, rows)
        put_back(f"{sublayer.output}.weight", 1, unit_columns(kept, sublayer.unit_width))
        # A table of relative positions belongs to this layer where heads are removed from it.
        name = f"{sublayer.biased_by}.{BIAS_TABLE}.weight"
        if name in small and small[name].shape != large[name].shape:
            put_back(name, 1, unit_columns(kept, 1))
    restored.load_state_dict(weights)
    return restored


@contextmanager
def gated(
    model: nn.Module, sublayers: Sequence[Sublayer], gates: Mapping[str, Tensor]
) -> Iterator[None]:
    """Multiply each unit's slice by its gate while the context lasts.

    Args:
        gates: sublayer name -> [units] multipliers; sublayers without an entry stay as they are.
    """
    with hooks(
        model.get_submodule(x.output).register_forward_pre_hook(
            _gate_hook(gates[x.name], x.unit_width)
        )
        for x in sublayers
        if x.name in gates
    ):
        yield


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
        sublayers: of the dense model, which skips the layers that `mask` drops.
        batches: model inputs (without labels), preferably of unequal lengths with padding.

    Raises:
        VerificationError: the difference, relative to the largest logit, exceeds
            `SURGERY_TOLERANCE`.
    """
    dense.eval(), pruned.eval()
    left = [x for x in sublayers if x.layer not in mask.dropped]
    differences = []
    for batch in batches:
        with skipped(dense, sublayers, mask), gated(dense, left, mask_gates(mask)):
            expected = dense(**batch).logits
        differences.append(relative_difference(pruned(**batch).logits, expected))
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
