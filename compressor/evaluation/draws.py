"""Bootstrap resamples of rows, as counts of draws."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from compressor.evaluation.metric import Array

# Row numbers (int64) drawn at once: bounds the memory of a chunk to a few times 32 MB.
DRAWS_PER_CHUNK = 4_000_000


def resampled_counts(
    groups: NDArray[np.intp], resamples: int, seed: int, chunk: int = DRAWS_PER_CHUNK
) -> Iterator[Array]:
    """Number of draws of each group, in chunks [resamples of the chunk, groups].

    Args:
        groups: [rows], the group of each row.
        chunk: row numbers drawn at once; the draws do not depend on it.
    """
    rows, width = groups.size, int(groups.max()) + 1
    generator = np.random.default_rng(seed)
    size = max(1, chunk // rows)
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        drawn = groups[generator.integers(rows, size=(count, rows))]  # [resamples, rows]
        drawn += np.arange(count)[:, None] * width  # each resample has its own range of numbers
        counts = np.bincount(drawn.reshape(-1), minlength=count * width)
        yield counts.reshape(count, width).astype(np.float64)
