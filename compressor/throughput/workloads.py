"""The batches to time: rows of the data, unchanged or with one common length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from compressor.runtime.text import Encoded

Batch = dict[str, NDArray[np.int64]]
Lengths = Literal["data"] | int


@dataclass(frozen=True)
class Workload:
    """Batches of one size; token counts are means per row."""

    batch_size: int
    batches: list[Batch]
    source_tokens: float
    padded_source_tokens: float
    target_tokens: float = 0.0  # that each row generates; 0 if the model does not generate

    @classmethod
    def of(cls, batches: list[Batch]) -> Workload:
        """From batches of one size that hold an `attention_mask` [rows, tokens]."""
        masks = [batch["attention_mask"] for batch in batches]
        rows = sum(len(mask) for mask in masks)
        return cls(
            batch_size=len(masks[0]),
            batches=batches,
            source_tokens=sum(int(mask.sum()) for mask in masks) / rows,
            padded_source_tokens=sum(mask.size for mask in masks) / rows,
        )


def make_workloads(
    rows: Sequence[Encoded],
    batch_sizes: Sequence[int],
    collate: Callable[[list[Encoded]], Batch],
    *,
    lengths: Lengths = "data",
    seed: int = 0,
) -> list[Workload]:
    """One workload per batch size, each of 4 to 16 batches (about 32 rows, if that suffices).

    Rows keep the data's order. Of more rows than needed a random sample is taken; fewer rows are
    repeated from the start.

    Args:
        rows: with their special tokens.
        collate: pads rows into a batch that has an `attention_mask`.
        lengths: `data`, or the number of tokens every row is truncated or extended to.
    """
    if lengths != "data":
        rows = [_with_length(row, lengths) for row in rows]
    return [_workload(rows, size, collate, seed) for size in batch_sizes]


def _workload(
    rows: Sequence[Encoded], size: int, collate: Callable[[list[Encoded]], Batch], seed: int
) -> Workload:
    # Enough batches for a typical mix of lengths, few enough to repeat each several times.
    wanted = size * min(16, max(4, ceil(32 / size)))
    chosen = [index % len(rows) for index in range(wanted)]
    if len(rows) >= wanted:
        sample = np.random.default_rng(seed).choice(len(rows), size=wanted, replace=False)
        chosen = [int(index) for index in np.sort(sample)]
    batches = [
        collate([rows[index] for index in chosen[start : start + size]])
        for start in range(0, wanted, size)
    ]
    return Workload.of(batches)


def _with_length(row: Encoded, tokens: int) -> Encoded:
    """The row truncated or extended to `tokens`; its last token (a special one) stays the last."""
    length = len(row)
    inner = max(1, length - 1)
    positions = [index % inner for index in range(tokens - 1)] + [length - 1]
    return Encoded([row[i] for i in positions], [row.type_ids[i] for i in positions])
