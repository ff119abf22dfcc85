"""`--max-drop`: the search along a path of cuts, against looking at every cut of made-up models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from compressor.budgets.max_drop import (
    ERROR,
    Proof,
    SearchResult,
    bisect_largest,
    error_of_look,
    search_and_confirm,
)
from tests.helpers.scores import judged


@pytest.mark.parametrize("last", [1, 2, 7, 144])
def test_the_search_finds_the_threshold(last):
    """For every position where acceptance may end, in at most log2 of the number of cuts."""
    for threshold in range(last + 1):
        tried: list[int] = []

        def accepts(position: int) -> bool:
            tried.append(position)  # noqa: B023
            return position <= threshold  # noqa: B023

        assert bisect_largest(last, accepts) == threshold
        assert len(set(tried)) == len(tried) <= 1 + math.ceil(math.log2(last))
        assert all(1 <= position <= last for position in tried)


def run(
    drops: Sequence[float],
    held_out: Sequence[float] | None = None,
    half: float = 0.1,
    half_held_out: float | None = None,
    proof: Proof = "bound",
) -> tuple[SearchResult, list[int]]:
    """A search for a drop of 1 among made-up models; also the positions that were built.

    Args:
        drops: of positions 1, 2, … on the rows of the search.
        held_out: the same on the held-out rows.
        half: how far the bound lies below the difference.
    """
    built: list[int] = []
    looks: list[int] = []

    def judge(position: int, look: int):
        drop, width = drops[position - 1], half
        if look:
            assert position in built
            looks.append(look)
            assert looks == list(range(1, look + 1))
            drop = (held_out or drops)[position - 1]
            width = half if half_held_out is None else half_held_out
        else:
            built.append(position)
        return judged(100 - position, -drop, -drop - width, position)

    return search_and_confirm(len(drops), 1.0, proof, judge), built


LINEAR = [0.1 * position for position in range(1, 17)]  # a drop of 1 at position 10
WORSE_AT_9 = [*LINEAR[:8], 1.5, *LINEAR[9:]]


@pytest.mark.parametrize(
    ("models", "position", "proven", "looks"),
    [
        pytest.param({"drops": LINEAR}, 9, True, [9], id="0.9, and 0.1 for the bound"),
        pytest.param(
            {"drops": [*LINEAR, 4.0, 5.0, 6.0], "half": 4.0}, 10, False, None,
            id="few rows prove nothing, and the measured drop decides",
        ),
        pytest.param(
            {"drops": LINEAR, "half": 4.0, "half_held_out": 0.0}, 10, True, [10],
            id="held-out rows prove what the others could not",
        ),
        pytest.param(
            {"drops": LINEAR, "held_out": WORSE_AT_9}, 8, True, [9, 8],
            id="held-out rows refuse, and the next smaller cut is judged",
        ),
        pytest.param(
            {"drops": LINEAR, "held_out": WORSE_AT_9, "half_held_out": 4.0}, 8, False,
            [9, 8, 4, 2, 1],
            id="held-out rows prove none, and the largest within the limit is taken",
        ),
        pytest.param({"drops": [2.0] * 16}, 0, False, [], id="every cut loses too much"),
        pytest.param(
            {"drops": [math.nan] * 4, "proof": "measured"}, 0, False, [], id="not a number"
        ),
    ],
)  # fmt: skip
def test_the_largest_cut_that_is_proven_is_delivered(models, position, proven, looks):
    result, built = run(**models)
    assert (result.position, result.proven) == (position, proven)
    assert looks is None or [probe.position for probe in result.looks] == looks
    assert [probe.position for probe in result.candidates] == built
    assert len(set(built)) == len(built)  # none is built twice
    assert position or built[-1] == 1  # the smallest cut of all was tried


def test_all_looks_together_err_no_more_often_than_promised():
    """By Bonferroni's inequality, however many they are."""
    assert error_of_look(1) == 0.025  # the lower end of a 95 % interval
    assert sum(error_of_look(number) for number in range(1, 40)) <= ERROR
