"""The statistics of studies against SciPy and brute force, and the table and plot of agreement."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from compressor.model.sublayers import Mask, Scores
from compressor.study.compare_scores import (
    compare_scores,
    compared_pair,
    comparison_text,
    flat,
    permutation_p,
)
from compressor.study.over_training import ranking
from compressor.study.quality import holm, removals
from tests.helpers.scores import LAYERS, sample


def scores(**values: list[float]) -> Scores:
    """Scores by stack: `encoder=[0.5, 0.1]`."""
    return Scores({f"{x}_self.0": tuple(v) for x, v in values.items()}, "made", "made", {})


def correlations(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Spearman: the correlation of ranks. Kendall: of the signs of all pairs' differences."""
    a, b = (np.sign(values[:, None] - values[None]).ravel() for values in (x, y))
    spearman = np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1]
    return float(spearman), float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize("levels", [None, 3])
def test_correlations_and_overlaps_of_all_heads_and_per_kind(levels: int | None):
    first, second = sample(0, "taylor", levels=levels), sample(1, "fisher", levels=levels)
    comparison = compare_scores([first, second])
    (pair,) = comparison["pairs"]
    kinds = ["all", "encoder_self", "decoder_self", "cross"]
    assert [row["kind"] for row in pair["correlations"]] == kinds
    lines = [line.split()[-3:] for line in comparison_text(comparison).splitlines()]
    for row in pair["correlations"]:
        x, y = (flat(one, None if row["kind"] == "all" else row["kind"]) for one in (first, second))
        assert row["units"] == len(x)
        assert (row["spearman"], row["kendall"]) == pytest.approx(correlations(x, y))
        assert [str(len(x)), f"{row['spearman']:+.3f}", f"{row['kendall']:+.3f}"] in lines
    assert [row["units"] for row in pair["lowest"]] == [3, 6, 9, 12, 15]  # 10 ... 50 % of 30
    for row in pair["lowest"] if levels is None else ():
        sets = [set(np.argsort(flat(one))[: row["units"]]) for one in (first, second)]
        assert row["shared"] == len(sets[0] & sets[1])
        chance = stats.hypergeom(30, row["units"], row["units"]).mean()
        assert row["by_chance"] == pytest.approx(chance)
        assert [str(row["units"]), str(row["shared"]), f"{chance:.1f}"] in lines


def test_what_is_undefined_is_not_shown_as_a_number():
    """Scores that are all the same, and agreement that is only the order of ties."""
    constant = Scores({name: (0.0,) * n for name, n in LAYERS.items()}, "zero", "zero", {})
    undefined = compared_pair(sample(0, "taylor"), constant, seed=0)
    assert {row["p"] for rows in undefined.values() for row in rows} == {None}
    assert {row["spearman"] for row in undefined["correlations"]} == {None}
    text = comparison_text(compare_scores([sample(0, "taylor"), constant]))
    assert "n/a: the cut falls between equal scores." in text


def test_a_cut_between_ties_has_no_overlap_and_one_beside_them_has():
    first = scores(encoder=[0, 0, 0, 0], decoder=[1, 1, 2, 3])
    last = scores(encoder=[0, 0, 0, 0], decoder=[1, 2, 3, 1])
    lowest = {row["units"]: row for row in compared_pair(first, last, seed=0)["lowest"]}
    assert (lowest[4]["shared"], lowest[4]["p"]) == (4, pytest.approx(1 / 70))
    assert (lowest[2]["shared"], lowest[2]["p"]) == (None, None)
    assert ranking(first, last)["shared"] == 1  # head 2 of heads 2 and 3, 1 and 2
    # The top two of eight heads are heads 6 and 7 at last, and 7 and 0 at first.
    first = scores(encoder=[7, 1, 2, 3], decoder=[4, 5, 6, 8])
    ranked = ranking(first, scores(encoder=[1, 2, 3, 4], decoder=[5, 6, 7, 8]))
    assert (ranked["top"], ranked["shared"], ranked["by_chance"]) == (2, 1, 0.5)
    assert ranked["p"] == pytest.approx(1 - (6 * 5) / (8 * 7))
    tied = scores(encoder=[0] * 4, decoder=[0, 0, 4, 3])
    assert (ranking(tied, tied)["shared"], ranking(tied, tied)["p"]) == (2, pytest.approx(1 / 28))


def test_permutation_p_is_near_that_of_all_permutations():
    """All 720 orders of six heads, with ties on one side."""
    x, y = np.array([1.0, 2.0, 2.0, 3.0, 5.0, 4.0]), np.array([0.3, 0.1, 0.5, 0.4, 0.8, 0.9])
    ranks = stats.rankdata(x) - 3.5
    products = np.abs([ranks @ stats.rankdata(order) for order in permutations(y)])
    expected = np.mean(products >= products[0] - 1e-9)
    assert permutation_p(x, y, seed=0) == pytest.approx(expected, abs=0.015)


def test_heads_are_removed_in_ascending_order_within_their_kind():
    scored = scores(encoder=[0.5, 0.1, 0.3], decoder=[0.2, 0.9])
    full = Mask({name: (True,) * len(values) for name, values in scored.values.items()})
    removed = removals(scored, full, "encoder_self", (0, 50, 100))
    assert [mask.total() - mask.count() for mask in removed] == [0, 2, 3]
    assert list(removed[1].keep.values()) == [(True, False, False), (True, True)]
    (removed,) = removals(scored, full, "heads", (40,))
    assert list(removed.keep.values()) == [(True, False, True), (False, True)]


def test_holm_rejects_what_the_step_down_procedure_rejects():
    """Holm 1979 as it is written: compare the k-th smallest with level / (n - k + 1), stop once."""
    p_values = [0.04, 0.001, 0.2, 0.012, 1.0, 0.012, 0.6, 0.0004]
    adjusted = holm(p_values)
    for level in (0.0032, 0.005, 0.05, 0.1, 0.3, 0.61, 0.9):
        rejected = set()
        for k, place in enumerate(np.argsort(p_values, kind="stable")):
            if p_values[place] > level / (len(p_values) - k):
                break
            rejected.add(int(place))
        assert {i for i, p in enumerate(adjusted) if p <= level} == rejected
