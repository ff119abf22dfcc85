"""Whether a network's values fit into half precision, seen while it computes in float32."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from compressor.results import HALF_RANGE, Check

LARGEST_HALF = 65_504.0
# Of the range. What a few batches show is a sample: other inputs give larger values.
_TOLERANCE = 0.5
_FILLER = 1e30  # what masks add in float32; the exported graphs have a mask of their own


class LargestValue(TorchDispatchMode):
    """While entered, notes the largest absolute value that any operation of PyTorch gives.

    Weights that are merely looked at count too. What masks are filled with does not.
    """

    found: float = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if "empty" not in func.__name__:  # nothing is in there yet
            for value in tree_leaves(result):
                if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
                    sizes = value.detach().abs()
                    self.found = max(self.found, float(sizes.where(sizes < _FILLER, 0).max()))
        return result


def range_check(largest: float) -> Check:
    """The report's line about the largest value found, as a share of what float16 can hold."""
    return Check(
        name=HALF_RANGE,
        largest_difference=largest / LARGEST_HALF,
        tolerance=_TOLERANCE,
        detail=f"the largest value on the way is {largest:.3g}, where float16 holds at most "
        f"{LARGEST_HALF:,.0f} and other inputs may need twice as much",
    )
