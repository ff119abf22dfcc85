"""The selection of the best tokens against a full sort."""

from __future__ import annotations

import numpy as np
import pytest

from compressor.runtime.search import top_k


@pytest.mark.parametrize(
    ("n", "k"), [(8, 8), (61, 6), (305, 10), (5000, 8), (4097, 3), (60_001, 6)]
)
def test_top_k_equals_a_full_sort(n: int, k: int) -> None:
    scores = np.random.default_rng(n).standard_normal((7, n)).astype(np.float32)
    scores[0, : n // 2] = -np.inf
    values, places = top_k(scores, k)
    assert values.tolist() == np.sort(scores, axis=1)[:, ::-1][:, :k].tolist()
    assert np.take_along_axis(scores, places, axis=1).tolist() == values.tolist()
    assert all(len(set(row)) == k for row in places.tolist())
