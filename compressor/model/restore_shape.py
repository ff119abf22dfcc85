"""A pruned and repaired model in the shape of the dense one, to score it and prune it once more.

Scoring and surgery expect a model of the dense shape and a mask. After a step of pruning with
recovery the weights are the pruned model's. Put back to where they came from, and gated by the
mask, they compute what the pruned model does.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from compressor.model.modeling_pruned import BIAS_TABLE, unit_columns, unit_rows
from compressor.model.sublayers import Mask, Sublayer


def restore_shape(
    dense: nn.Module, pruned: nn.Module, sublayers: Sequence[Sublayer], mask: Mask
) -> nn.Module:
    """A copy of `dense` with all the weights that `pruned` has.

    Args:
        pruned: `dense` without the units that `mask` removes; its weights may have changed since.

    Returns:
        A model that equals `pruned` when gated by `mask`; weights of removed units are the dense
        model's.
    """
    restored = copy.deepcopy(dense)
    large = restored.state_dict()
    small = {name: value for name, value in pruned.state_dict().items() if name in large}
    weights = {**large, **small}
    for sublayer in sublayers:
        kept = mask.kept(sublayer.name)
        positions = unit_columns(kept, sublayer.unit_width)
        rows = unit_rows(kept, sublayer.unit_width, sublayer.units, sublayer.parts)
        for path in sublayer.inputs.values():
            for key in (f"{path}.weight", f"{path}.bias"):
                if key in small:
                    weights[key] = _copy_into(large[key], 0, rows, small[key])
        # A table of relative positions belongs to this layer where heads are removed from it.
        key = f"{sublayer.biased_by}.{BIAS_TABLE}.weight"
        if key in small and small[key].shape != large[key].shape:
            weights[key] = _copy_into(large[key], 1, unit_columns(kept, 1), small[key])
        key = f"{sublayer.output}.weight"
        if key in small:
            weights[key] = _copy_into(large[key], 1, positions, small[key])
    restored.load_state_dict(weights)
    return restored


def _copy_into(large: Tensor, dimension: int, index: Tensor, small: Tensor) -> Tensor:
    return large.index_copy(dimension, index.to(large.device), small)
