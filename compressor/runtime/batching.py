"""From encoded rows to padded batches, and how rows are put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from compressor.errors import UsageError

Batch = dict[str, NDArray[np.int64]]


def collate(rows: Sequence[Sequence[int]], pad_id: int, names: Sequence[str]) -> Batch:
    """Pad rows of token ids on the right.

    Args:
        rows: token ids; for `token_type_ids` other than 0, `Encoded` rows.
        pad_id: fills `input_ids`; the other arrays are filled with 0.
        names: which of `input_ids`, `attention_mask` and `token_type_ids` to make.

    Returns:
        name -> int64 array [rows, longest row].
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    real = np.arange(lengths.max(initial=0)) < lengths[:, None]

    def fill(values: Sequence[Sequence[int]], padding: int) -> NDArray[np.int64]:
        array = np.full(real.shape, padding, dtype=np.int64)
        array[real] = [value for row in values for value in row]
        return array

    makers = {
        "input_ids": lambda: fill(rows, pad_id),
        "attention_mask": lambda: real.astype(np.int64),
        "token_type_ids": lambda: fill(
            [getattr(row, "type_ids", None) or [0] * len(row) for row in rows], 0
        ),
    }
    return {name: makers[name]() for name in names}


def by_length(rows: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Row numbers in batches of rows of similar length, longest first.

    Raises:
        UsageError: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size is {batch_size}, but must be at least 1")
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
