"""Whether a network's values fit into float16, recorded while it computes in float32."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from compressor.results import HALF_RANGE, Check

LARGEST_HALF = 65_504.0
# Share of the range. A few batches are a sample: other inputs give larger values.
_TOLERANCE = 0.5
# transformers masks with about -3e38 in float32, and exported graphs with -1e4, so values beyond
# this are ignored.
_MASK_VALUE = 1e30


class LargestValue(TorchDispatchMode):
    """Inside this context, records the largest absolute value that a PyTorch operation returns.

    Views of weights count too; masks do not.
    """

    largest: float = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if "empty" not in func.__name__:  # its memory is not initialized
            for value in tree_leaves(result):
                if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
                    sizes = value.detach().abs()
                    largest = float(sizes.where(sizes < _MASK_VALUE, 0).max())
                    self.largest = max(self.largest, largest)
        return result


def range_check(largest: float) -> Check:
    """The check of the largest value, as a share of the largest float16 number."""
    return Check(
        name=HALF_RANGE,
        largest_difference=largest / LARGEST_HALF,
        tolerance=_TOLERANCE,
        detail=f"the largest intermediate value is {largest:.3g}; the limit of float16 is "
        f"{LARGEST_HALF:,.0f}, and other inputs may give twice as much",
    )
