"""A pruned and repaired model in the shape of the dense one, to score and cut it once more.

Scoring and surgery speak of the dense model's layers and of a mask. Between two steps of pruning
with recovery the weights are the pruned model's; put back to where they came from, the gated twin
computes what the pruned model does, and everything that works on a dense model works on it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import unit_columns


def restore_shape(
    dense: nn.Module, pruned: nn.Module, layers: Sequence[Sublayer], mask: Mask
) -> nn.Module:
    """A copy of `dense` with all the weights that `pruned` has.

    Args:
        pruned: `dense` without the heads that `mask` removes; its weights may have changed since.

    Returns:
        A model that equals `pruned` when gated by `mask`; weights of removed heads are the dense
        model's.
    """
    twin = copy.deepcopy(dense)
    small, large = pruned.state_dict(), twin.state_dict()
    placed = dict(small)
    for layer in layers:
        columns = unit_columns(mask.kept(layer.name), layer.unit_width)
        for path in layer.inputs.values():
            for key in (f"{path}.weight", f"{path}.bias"):
                if key in small:
                    placed[key] = _put(large[key], 0, columns, small[key])
        key = f"{layer.output}.weight"
        if key in small:
            placed[key] = _put(large[key], 1, columns, small[key])
    twin.load_state_dict({**large, **placed})
    return twin


def _put(large: Tensor, dimension: int, index: Tensor, small: Tensor) -> Tensor:
    return large.index_copy(dimension, index.to(large.device), small)
