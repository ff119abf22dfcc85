"""The batches that are timed: the same rows for all models."""

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
        """Count the tokens of batches of one size that have an `attention_mask` [rows, tokens]."""
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
    """Make one workload per batch size, each of 4 to 16 batches (about 32 rows, if that suffices).

    Rows keep the data's order. If there are more than needed, a random sample is taken; if there
    are fewer, they are repeated from the start.

    Args:
        rows: encoded, with their special tokens.
        batch_sizes: rows per batch; distinct.
        collate: pads rows to a batch that has an `attention_mask`.
        lengths: `data`, or the number of tokens that every row is truncated or extended to; its
            last token (a special one) stays the last.
        seed: of the sample.
    """
    if lengths != "data":
        whole, rows = rows, []
        for row in whole:
            inner, last = max(1, len(row) - 1), len(row) - 1
            places = [index % inner for index in range(lengths - 1)] + [last]
            rows.append(Encoded([row[i] for i in places], [row.type_ids[i] for i in places]))
    workloads = []
    for size in batch_sizes:
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
        workloads.append(Workload.of(batches))
    return workloads
