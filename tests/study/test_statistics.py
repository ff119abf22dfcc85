"""Corrections and permutation tests against their definitions, by brute force."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from compressor.study.statistics import holm, permutation_p

P_VALUES = [0.04, 0.001, 0.2, 0.012, 1.0, 0.012, 0.6, 0.0004]


def test_holm_rejects_what_the_step_down_procedure_rejects():
    """Holm 1979 as it is written: compare the k-th smallest with level / (n - k + 1), stop once."""
    adjusted = holm(P_VALUES)
    for level in (0.0032, 0.005, 0.05, 0.1, 0.3, 0.61, 0.9):
        rejected = set()
        for k, place in enumerate(np.argsort(P_VALUES, kind="stable")):
            if P_VALUES[place] > level / (len(P_VALUES) - k):
                break
            rejected.add(int(place))
        assert {i for i, p in enumerate(adjusted) if p <= level} == rejected
    assert holm([0.3]) == [0.3]


def test_permutation_p_is_near_that_of_all_permutations():
    """All 720 orders of six heads, with ties on one side."""
    x, y = np.array([1.0, 2.0, 2.0, 3.0, 5.0, 4.0]), np.array([0.3, 0.1, 0.5, 0.4, 0.8, 0.9])
    observed = abs(stats.spearmanr(x, y).statistic)
    shuffled = [abs(stats.spearmanr(x, order).statistic) for order in permutations(y)]
    expected = np.mean(np.array(shuffled) >= observed - 1e-9)
    assert permutation_p(x, y, seed=0) == pytest.approx(expected, abs=0.015)
    assert permutation_p(x, y, seed=0) == permutation_p(x, y, seed=0)
